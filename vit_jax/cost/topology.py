# SPDX-License-Identifier: Apache-2.0
"""Accelerators that are not here, described well enough for their vendors' compilers.

`compile_lowered` compiles a traced program for one and returns what the compiler logs; `reason`
says why it failed.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from vit_jax.devices import hardware
from vit_jax.errors import UserError, install
from vit_jax.process import waiting

# libtpu asks the metadata server of a TPU VM what it is, and locks a file while a process has it.
_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Generations that libtpu resolves: the dimensions of a shape, and GiB of a jax device, half of a
# chip of v2, v3 and TPU7x (docs.cloud.google.com/tpu/docs).
_TPUS = {"v2": (2, 8), "v3": (2, 16), "v4": (3, 32), "v5e": (2, 16)}
_TPUS |= {"v5p": (3, 95), "v6e": (2, 32), "tpu7x": (3, 96)}
_H100 = ("NVIDIA H100 80GB HBM3", (9, 0), 132, 84942979072, 3352320000000)
_A100 = ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85094825984, 2039000000000)
_CUDNN = (9, 10, 0)  # the version that programs are traced for
_EXAMPLES = "v5e:16x16, v5p:4x4x4, 2xv5e:8x8 (two slices), h100:8, h100:8x8 (hosts x GPUs), a100:8"
_FLAG = "--compile_for"
_REMATERIALIZED = "involuntary full rematerialization"
TAKE_LESS = "fewer images a chip, accum_steps, model.remat=full or mesh.fsdp take less"


class _Gpu(NamedTuple):
    """A GPU as XLA's GpuTargetConfigProto describes it (NVIDIA's data sheet and `deviceQuery`)."""

    kind: str
    capability: tuple[int, int]
    cores: int
    memory: int  # bytes
    bandwidth: int  # bytes/s
    cache: int  # of level 2, bytes
    clock: float  # GHz
    shared_block: int  # bytes that a block may ask for
    shared_core: int  # bytes


_GPUS = {
    "h100": _Gpu(*_H100, 52428800, 1.98, 232448, 233472),
    "a100": _Gpu(*_A100, 41943040, 1.41, 166912, 167936),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Hardware to compile for.

    Attributes:
        devices: compile-only devices, which hold no memory and run nothing.
        target: what layers choose their kernels by.
        memory: bytes of a device.
    """

    name: str
    devices: Sequence[Any]
    target: hardware.Target
    memory: int

    @property
    def compiler_options(self) -> dict[str, bool]:
        """What `Lowered.compile` needs here and not there.

        On a card XLA times its kernels of a matmul and takes one that works. Without one it takes
        the first tiling of Triton's, which cannot cut a Swin's windows of 49 tokens.
        """
        return {"xla_gpu_enable_triton_gemm": False} if self.target.platform == "gpu" else {}

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what is inside for this hardware."""
        with hardware.tracing_for(self.target), cudnn_answers(self.target):
            yield


def describe(name: str) -> Topology:
    """Describe the hardware of a name such as "v5e:16x16", "2xv5e:8x8", "h100:8" or "h100:8x8".

    Must be called before jax has started a backend in a process that could see a real TPU.

    Raises UserError: no such hardware, or its compiler is not installed.
    """
    slices, kind, shape = read(name)
    return (_gpus if kind in _GPUS else _tpus)(name, kind, slices, shape)


def read(name: str, flag: str = _FLAG) -> tuple[int, str, list[int]]:
    """Read the name of hardware: the number of slices, the generation, the sides of a slice.

    Raises UserError, which names the `flag` that it is of: no such hardware.
    """
    found = re.fullmatch(r"(?:(\d+)x(?=[a-z]))?([a-z0-9]+):(\d+(?:x\d+)*)", name)
    if found is None:
        raise _refused(name, f"name hardware as GENERATION:SHAPE, like {_EXAMPLES}", flag)
    slices, kind, shape = int(found[1] or 1), found[2], [int(n) for n in found[3].split("x")]
    if min(slices, *shape) < 1:
        raise _refused(name, f"every number must be at least 1, like {_EXAMPLES}", flag)
    if kind not in _GPUS and kind not in _TPUS:
        known = ", ".join([*_TPUS, *_GPUS])
        raise _refused(name, f"unknown hardware {kind}; choose {known}, like {_EXAMPLES}", flag)
    if kind in _TPUS and len(shape) != (sides := _TPUS[kind][0]):
        example = f"{kind}:{'x'.join('4' * sides)}"
        raise _refused(name, f"a {kind} slice has {sides} sides, as {example}", flag)
    return slices, kind, shape


def _refused(name: str, why: str, flag: str = _FLAG) -> UserError:
    return UserError(f"{flag}={name}: {why}")


def _tpus(name: str, kind: str, slices: int, shape: list[int]) -> Topology:
    _, gib = _TPUS[kind]
    _need("libtpu", "aot-tpu")
    for key, value in _TPU_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    options: dict[str, Any] = {"chip_config_name": "megacore"} if kind == "v4" else {}
    if slices > 1:
        options["num_slices"] = slices
    # Hosts of four chips are what libtpu takes all to be; these are one host each.
    if set(shape) == {1} or (kind in ("v5e", "v6e") and shape == [2, 4]):
        options["chips_per_host_bounds"] = [*shape, 1][:3]
    devices = _devices("tpu", f"{kind}:{'x'.join(map(str, shape))}", name, **options)
    return Topology(name, devices, hardware.of(devices[0]), gib * 2**30)


def _gpus(name: str, kind: str, slices: int, shape: list[int]) -> Topology:
    if len(shape) > 2 or slices > 1:
        raise _refused(name, f"give {kind}:GPUS for one host or {kind}:HOSTSxGPUS for several")
    _need("jax_cuda13_plugin", "aot-gpu")
    gpu, hosts = _GPUS[kind], shape[0] if len(shape) == 2 else 1
    options = {"topology": f"1x{hosts}x{shape[-1]}", "target_config": _config(gpu)}
    target = hardware.Target("gpu", gpu.kind, gpu.capability)
    return Topology(name, _devices("cuda", kind, name, **options), target, gpu.memory)


def _devices(platform: str, resolved: str, name: str, **options: Any) -> list[Any]:
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(resolved, platform, **options).devices)
    except Exception as error:  # the plugins raise what they like, with a C++ trace behind it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _refused(name, f"no such hardware ({reason})") from error


def _need(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(f"--compile_for needs the vendor's compiler: {install(extra)}")


def _config(gpu: _Gpu) -> str:
    """Write XLA's GpuTargetConfigProto; what is equal on all since Ampere is written out."""
    major, minor = gpu.capability
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {gpu.shared_core}
  shared_memory_per_block_optin: {gpu.shared_block}
  core_count: {gpu.cores} fpus_per_core: {128 if gpu.capability >= (9, 0) else 64}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {gpu.bandwidth} l2_cache_size: {gpu.cache} clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory} registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability {{ major: {major} minor: {minor} }} name: "{gpu.kind}" }}
platform_name: "CUDA" device_description_str: "{gpu.kind}"
dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} patch: {_CUDNN[2]} }}"""


@contextlib.contextmanager
def cudnn_answers(target: hardware.Target) -> Iterator[None]:
    """Have jax's checks of cuDNN answer for a described GPU instead of asking a local one."""
    if not target.has_cudnn:
        yield
        return
    from jax._src.cudnn import fused_attention_stablehlo as checks  # jax has no public seam

    def capability(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    answers = {
        "check_cudnn_version": lambda: _CUDNN[0] * 10000 + _CUDNN[1] * 100 + _CUDNN[2],
        "check_compute_capability": lambda least: target.capability >= capability(least),
        "is_cuda_compute_capability_equal": lambda other: target.capability == capability(other),
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.callback(setattr, checks, name, getattr(checks, name))
            setattr(checks, name, answer)
        yield


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled by jax, and the seconds that took.

    `num_rematerialized` counts the arrays that the partitioner makes whole on every device for want
    of a direct way between two shardings; each is a line of its log.
    """

    program: Any
    seconds: float
    num_rematerialized: int


def compile_lowered(lowered: Any, options: Mapping[str, Any] | None = None) -> Compiled:
    """Compile what `jit(...).lower(...)` returned, with XLA's options besides the program's own.

    Raises UserError: it does not compile; the compiler's reason in one line.
    """
    start = time.monotonic()
    waiting.by_another_compiler()
    try:
        with _log() as log, _unkept():
            program = lowered.compile(compiler_options=dict(options) if options else None)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(reason(str(error))) from error
    return Compiled(program, time.monotonic() - start, log[0].lower().count(_REMATERIALIZED))


def reason(message: str) -> str:
    """Return in one line why XLA does not compile a program: of a TPU's page, the memory needed."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    why = lines[0] if lines else "the compiler gives no reason"
    used = re.search(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm", message)
    if used is not None:
        why = f"out of memory, {used[1]} {used[2]}iB needed of the {used[3]} {used[4]}iB that a "
        why += f"chip has; {TAKE_LESS}"
    return f"does not compile: {why}"


@contextlib.contextmanager
def _unkept() -> Iterator[None]:
    """Keep a program out of jax's cache on disk, which cannot read it without its hardware."""
    setting = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.values[setting]
    jax.config.update(setting, math.inf)
    try:
        yield
    finally:
        jax.config.update(setting, before)


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """Copy what C++ writes to the process's standard error, which is not sys.stderr.

    Another process copies, and so shows the last words of a compiler that ends this one.
    """
    text = [""]
    sys.stderr.flush()
    with tempfile.NamedTemporaryFile() as file:
        kept = os.dup(2)
        copy = subprocess.Popen(["tee", file.name], stdin=subprocess.PIPE, stdout=kept)
        assert copy.stdin is not None
        os.dup2(copy.stdin.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            copy.stdin.close()
            copy.wait()
            text[0] = file.read().decode(errors="replace")
