# SPDX-License-Identifier: Apache-2.0
"""Which device a program is traced for: the machine's own, or one that is only described.

Kernels are chosen during tracing. A program for hardware elsewhere (cost/topology.py) must choose
as it would there, so no code reads `jax.default_backend()` itself. `compiler_options` are XLA's
there. `explained` turns a device's lack of memory into one line that says what to lower.
"""

import contextlib
import contextvars
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.errors import UserError, setting

_CPU_INFO = Path("/proc/cpuinfo")
_described: contextvars.ContextVar["Target | None"] = contextvars.ContextVar("target", default=None)
TRAINING = (
    "lower data.batch_size, or keep it with a larger accum_steps, model.remat=full or, on several "
    "devices, mesh.fsdp"
)
_LONGEST = 240  # letters of what JAX says

# On a CPU, XLA gives some work to a library, YNNPACK. Its weight gradient of a 3x3 convolution is
# four times as slow as XLA's own, a sixth of a ResNet's step: convolutions are left out. Its sums
# of products are written out before they are summed: BatchNorm's cost a quarter of a step.
_YNNPACK = "xla_cpu_experimental_ynn_fusion_type"
_ON_CPU = {_YNNPACK: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}
_BATCH_NORM_ON_CPU = {_YNNPACK: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
# Overlaps the collectives of a loop over layers with the computation of the neighbouring layers;
# by default XLA for GPUs waits for each. JAX 0.12 has other names, and refuses the old ones.
_OVERLAP: tuple[str, bool | str] = ("xla_gpu_enable_pipelined_", True)
if jax.__version_info__ >= (0, 12):
    _OVERLAP = ("xla_gpu_pipeline_", "COLLECTIVE_PIPELINING_MODE_ON")
_OVERLAP_ON_GPUS = {
    f"{_OVERLAP[0]}{collective}": _OVERLAP[1]
    for collective in ("all_gather", "reduce_scatter", "all_reduce")
}
# No kernel whose sums run in any order, and none chosen by how long it took this time.
_REPRODUCIBLE_ON_GPU = {"xla_gpu_deterministic_ops": True}


@dataclasses.dataclass(frozen=True)
class Target:
    """The properties on which the choice of a kernel may depend."""

    platform: str  # "cpu", "gpu" or "tpu"
    kind: str = ""  # `jax.Device.device_kind`, such as "TPU v5 lite"
    capability: tuple[int, int] = (0, 0)  # of an NVIDIA GPU, such as (9, 0)

    @property
    def has_cudnn(self) -> bool:
        """Whether cuDNN's flash attention runs there: on NVIDIA's GPUs from Ampere on."""
        return self.capability >= (8, 0)


def target() -> Target:
    """Return the target of the trace: `tracing_for`'s, else the first local device."""
    described = _described.get()
    return of(jax.local_devices()[0]) if described is None else described


def compiler_options(
    mesh: Mesh, has_batch_norm: bool, *, reproducible: bool = False
) -> dict[str, bool | str]:
    """Return XLA's options for the mesh's devices, except those that XLA_FLAGS sets."""
    options: dict[str, bool | str] = {}
    if mesh.devices.flat[0].platform == "cpu":
        options = dict(_BATCH_NORM_ON_CPU if has_batch_norm else _ON_CPU)
    elif target().capability > (0, 0):  # NVIDIA's GPUs
        options |= _OVERLAP_ON_GPUS if mesh.size > 1 else {}
        options |= _REPRODUCIBLE_ON_GPU if reproducible else {}
    given = {flag.split("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options.items() if f"--{name}" not in given}


def slow_dtype(dtype: str, field: str, *, training: bool = False) -> str:
    """Return what to say of a dtype that costs time on the target in place of saving it, or "".

    That is bfloat16 on a CPU without AMX: where Intel's have AVX512-BF16, that does half the FLOPs
    of float32's instructions, and a ViT takes 1.3 times as long (benchmarks/NOTES.md). On AMD's it
    does twice as many, and a forward pass takes four fifths of float32's time; training's products
    return bfloat16, for which XLA has no such kernel. `field` is that of the command or config,
    "model.dtype".
    """
    if dtype != "bfloat16" or target().platform != "cpu":
        return ""
    listed = _cpu_info()
    if "amx_bf16" in listed or (not training and has_fast_bfloat16()):
        return ""
    return f"float32 is faster than bfloat16 on this CPU: {setting(f'{field}=float32')}"


def num_cores() -> int:
    """Return how many of this machine's cores the process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def has_fast_bfloat16() -> bool:
    """Whether the target is a CPU whose AVX512-BF16 does more FLOPs than its float32: AMD's."""
    return target().platform == "cpu" and {"AuthenticAMD", "avx512_bf16"} <= _cpu_info()


def _cpu_info() -> frozenset[str]:
    """Return the words by which Linux describes the CPU: its maker and its instructions."""
    with contextlib.suppress(OSError):
        return frozenset(_CPU_INFO.read_text().split())
    return frozenset()


def of(device: Any) -> Target:
    """Describe a device of jax."""
    # "9.0" on NVIDIA GPUs, "gfx942" on AMD's, absent on CPUs and TPUs.
    major, _, minor = getattr(device, "compute_capability", "").partition(".")
    is_nvidia = major.isdecimal() and minor.isdecimal()
    capability = (int(major), int(minor)) if is_nvidia else (0, 0)
    return Target(device.platform, device.device_kind, capability)


@contextlib.contextmanager
def tracing_for(described: Target) -> Iterator[None]:
    """Trace the body for a described device instead of the machine's own.

    jax's caches ignore the target: use other modules and jitted functions for each target, or call
    `jax.clear_caches()` between two.
    """
    token = _described.set(described)
    try:
        yield
    finally:
        _described.reset(token)


@contextlib.contextmanager
def explained(advice: str) -> Iterator[None]:
    """Raise UserError, with JAX's first line and the `advice`, where a device runs out of memory.

    The same for the machine's own memory.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        text = str(error)
        known = any(word in text.lower() for word in ("resource_exhausted", "out of memory"))
        if isinstance(error, jax.errors.JaxRuntimeError) and not known:
            raise
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        first = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."
        said = f" ({first})" if first else ""
        raise UserError(f"out of memory{said}; {advice}") from error
