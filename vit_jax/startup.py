# SPDX-License-Identifier: Apache-2.0
"""What comes before jax touches a device: XLA's flags, the heap, compiled programs, the cluster."""

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from vit_jax.errors import UserError

# Element-wise work is 1.5 to 2 times faster with 512-bit vectors where the CPU has them, and the
# memory-minimising schedule makes a ViT-S step 1.15 times faster than the concurrent one.
_CPU_FLAGS = (
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
)

# malloc.h: M_MMAP_MAX (no block outside the heap), M_TRIM_THRESHOLD (nothing is given back),
# M_ARENA_MAX (XLA's threads allocate from it too).
_ONE_HEAP = ((-4, 0), (-1, -1), (-8, 1))
_DEVICES = Path("/dev")
# Device files of GPUs (NVIDIA, AMD) and TPUs: there the heap serves the input pipeline's threads.
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel[0-9]*", "vfio/[0-9]*")

# Device files of NVIDIA's GPUs under WSL and on Jetson boards.
_OTHER_GPUS = ("dxg", "nvmap", "nvhost-gpu")
# What brings the compilers of TPUs and GPUs, and the devices where there are any.
_PLUGINS = ("libtpu", "jax_cuda13_plugin", "jax_cuda12_plugin")

_THREADS_PER_DEVICE = 4  # 1 is what deadlocks
_JAX_LEAST_SECONDS = 1.0  # jax's default: what compiles faster is not kept
# Compiled programs on disk; ViT-B's training step is some MB. jax itself would keep all.
_MAX_BYTES = 2 * 2**30

HEARTBEAT_TIMEOUT = 30  # seconds
SHUTDOWN_TIMEOUT = 60  # longer than the first process takes for a run's last files


def configure() -> None:
    """Set defaults that the user's own environment overrides; call before any jax computation."""
    given = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in _CPU_FLAGS if flag.split("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([*missing, given]).strip()
    if not device_files():
        keep_heap()
        ignore_plugins(jax.config.values["jax_platforms"] or "")
    lend_threads()
    keep_programs()


def stay_on_cpu() -> None:
    """Leave accelerators to others, a TPU VM's own too; call before any jax computation."""
    jax.config.update("jax_platforms", "cpu")


def ignore_plugins(asked: str) -> None:
    """Leave out the plugins of TPUs and GPUs that are here to compile for them, not to run.

    On a machine without either, jax would load them to look for devices: a page of errors, and
    libtpu may ask the network for its metadata server. `asked` is $JAX_PLATFORMS, which wins.
    """
    if asked or sys.platform != "linux":
        return
    if any((_DEVICES / node).exists() for node in _OTHER_GPUS):
        return
    if any(importlib.util.find_spec(name) is not None for name in _PLUGINS):
        stay_on_cpu()


def lend_threads() -> None:
    """Give virtual CPU devices threads enough; call before any computation.

    A collective holds a thread of each device until all have come. XLA's pool has a thread for each
    core or device: with as many devices as threads, programs that follow each other closely wait
    for threads that the others hold, and after 40 s XLA ends the process.
    """
    flag = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    count = max(jax.config.values["jax_num_cpu_devices"], int(flag[1]) if flag else 1)
    if count > 1:
        os.environ.setdefault("PJRT_NPROC", str(_THREADS_PER_DEVICE * count))


def device_files() -> list[str]:
    """List the device files of accelerators, whether or not jax has a plugin for them."""
    return [str(file) for node in _ACCELERATORS for file in sorted(_DEVICES.glob(node))]


def keep_heap() -> None:
    """Have freed memory reused, on Linux with glibc; call before any thread allocates.

    XLA on a CPU allocates a step's activations anew each step. By default glibc maps blocks of that
    size from the system and gives them back, and the system fills every page with zeros at its
    first touch: up to a sixth of a ViT-S step. So all blocks come from one heap that never shrinks;
    a process keeps the most that it ever needed. GLIBC_TUNABLES and MALLOC_* variables win.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in _ONE_HEAP:
            mallopt(parameter, value)


def keep_programs() -> None:
    """Keep compiled programs on disk: a later process reads what it would else compile.

    They lie in $XDG_CACHE_HOME/vit_jax/jax, or ~/.cache/vit_jax/jax, up to 2 GiB of them. jax's
    own settings win: JAX_COMPILATION_CACHE_DIR names another directory,
    JAX_ENABLE_COMPILATION_CACHE=false turns it off. A directory that cannot be written is one line
    of warning. Machines may share one: jax tells programs of unlike CPUs and versions apart.
    """
    settings = jax.config.values
    if settings["jax_persistent_cache_min_compile_time_secs"] == _JAX_LEAST_SECONDS:
        # A start runs dozens of small programs: 30-100 ms to compile each, a few ms to read.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"]:
        return
    try:
        unlimited = settings["jax_compilation_cache_max_size"] == -1
        # Where jax deletes it keeps files of its own beside each program, and needs them all.
        cache = _cache_home() / "vit_jax" / ("jax" if unlimited else "jax_limited")
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()  # permissions alone do not prove it
        if unlimited:
            _prune(cache, _MAX_BYTES)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        print(
            f"warning: compiled programs cannot be kept ({reason}); every start compiles anew. "
            "Set JAX_COMPILATION_CACHE_DIR to a directory that can be written",
            file=sys.stderr,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(cache))


def _cache_home() -> Path:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return given if given.is_absolute() else Path.home() / ".cache"


def _prune(cache: Path, max_bytes: int) -> None:
    """Delete the programs that have not been used for longest until the rest fits."""
    found = []
    for path in cache.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process deletes too
            stat = path.stat()
            # Without access times (noatime), the order of writing.
            found.append((max(stat.st_atime_ns, stat.st_mtime_ns), stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def join_cluster() -> None:
    """Join the cluster that the environment describes (TPU pod, Slurm, Open MPI, Kubernetes).

    A single process does nothing. `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` describe a cluster by hand; `JAX_NUM_PROCESSES=1` alone says that a process
    that looks like one of a cluster's is a run of its own. Must run before any other jax call.

    Raises:
        UserError: half a description, or a cluster that could not be joined.
    """
    env = os.environ
    by_hand: tuple[Any, ...] = ()
    address = env.get("JAX_COORDINATOR_ADDRESS")
    if address is not None:
        try:
            count, index = int(env["JAX_NUM_PROCESSES"]), int(env["JAX_PROCESS_ID"])
        except (KeyError, ValueError) as error:
            raise UserError(
                "JAX_COORDINATOR_ADDRESS is set: set JAX_NUM_PROCESSES and JAX_PROCESS_ID as well"
            ) from error
        if not re.fullmatch(r".+:\d+", address):
            raise UserError(f"JAX_COORDINATOR_ADDRESS={address} must be HOST:PORT")
        by_hand = (address, count, index)
    elif env.get("JAX_NUM_PROCESSES") == "1" or not _in_cluster(env):
        return
    try:
        # The others learn that a process died after the heartbeats' timeout, 100 s by default.
        # One that ends by an error of its own waits for the others, 300 s by default.
        jax.distributed.initialize(
            *by_hand,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except Exception as error:  # of jax, and of the clients of Kubernetes and metadata servers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"cannot join the cluster of this environment: {reason}; "
            "set JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID by hand, "
            "or JAX_NUM_PROCESSES=1 for a run of this process alone"
        ) from error


def _in_cluster(env: Mapping[str, str]) -> bool:
    if "TPU_WORKER_HOSTNAMES" in env or env.get("TPU_ML_PLATFORM") == "JAX":
        return (
            len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
            or "MEGASCALE_COORDINATOR_ADDRESS" in env
            # A Cloud TPU VM, where jax sets the first and asks the metadata server for the pod's
            # hosts; the second says that there is no such server.
            or (env.get("TPU_ML_PLATFORM") == "JAX" and "TPU_SKIP_MDS_QUERY" not in env)
        )
    return (
        # The step's count, not the job's: a batch script or a shell is no task of srun's.
        int(env.get("SLURM_STEP_NUM_TASKS") or 1) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE") or 1) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        # A pod of an Indexed Job; jax asks Kubernetes for the others.
        or ("KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env)
    )
