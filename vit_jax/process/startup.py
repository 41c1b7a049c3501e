# SPDX-License-Identifier: Apache-2.0
"""Set-up before jax touches a device: XLA's flags, the heap, compiled programs, the cluster."""

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
from jax._src import xla_bridge  # jax has no public seam

from vit_jax.errors import UserError
from vit_jax.process import waiting, xla
from vit_jax.storage.files import cache_home

# malloc.h: M_MMAP_MAX (no block outside the heap), M_TRIM_THRESHOLD (no memory is returned),
# M_ARENA_MAX (XLA's threads share the heap).
_ONE_HEAP = ((-4, 0), (-1, -1), (-8, 1))
_DEVICES = Path("/dev")
# Device files of GPUs (NVIDIA, AMD) and TPUs, where the heap serves the input pipeline's threads.
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel[0-9]*", "vfio/[0-9]*")

_OTHER_GPUS = ("dxg", "nvmap", "nvhost-gpu")  # NVIDIA's under WSL and on Jetson boards
# Packages with the compilers of TPUs and GPUs, and with their drivers.
_PLUGINS = ("libtpu", "jax_cuda13_plugin", "jax_cuda12_plugin")
# Limit of compiled programs on disk; ViT-B's training step is some MB. jax itself keeps all.
_MAX_BYTES = 2 * 2**30
# Seconds. Processes notice a dead one after the heartbeats' timeout, 100 by default. One that ends
# by its own error waits for the others, 300 by default; 60 outlasts writing a run's last files.
HEARTBEAT_TIMEOUT, SHUTDOWN_TIMEOUT = 30, 60

_forked = False  # whether this process was forked from one in which JAX ran


def _note_fork() -> None:
    global _forked
    _forked = xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """Raise UserError in a process in which the first computation would wait for ever.

    A fork copies none of the threads that JAX has started before.
    """
    if _forked:
        raise UserError(
            "this process was forked from one in which JAX runs, without JAX's threads, and would "
            "hang; start it by 'spawn': multiprocessing.get_context('spawn')"
        )


def configure() -> None:
    """Set defaults that the user's own environment overrides; call before any jax computation."""
    xla.set_flags()
    if not device_files():
        keep_heap()
        ignore_plugins(jax.config.values["jax_platforms"] or "")
    xla.lend_threads()
    keep_programs()
    waiting.say_compilations()


def stay_on_cpu() -> None:
    """Leave accelerators, even a TPU VM's own, to others; call before any jax computation."""
    jax.config.update("jax_platforms", "cpu")


def ignore_plugins(platforms: str) -> None:
    """Ignore the plugins of TPUs and GPUs on a machine without either, installed to compile only.

    jax would load them to look for devices: a page of errors, and libtpu may query the network for
    its metadata server. `platforms` is $JAX_PLATFORMS, which wins.
    """
    if platforms or sys.platform != "linux":
        return
    if any((_DEVICES / node).exists() for node in _OTHER_GPUS):
        return
    if any(importlib.util.find_spec(name) is not None for name in _PLUGINS):
        stay_on_cpu()


def device_files() -> list[str]:
    """List the device files of accelerators, whether or not jax has a plugin for them."""
    return [str(file) for node in _ACCELERATORS for file in sorted(_DEVICES.glob(node))]


def keep_heap() -> None:
    """Make glibc on Linux reuse freed memory; call before any thread allocates.

    XLA on a CPU allocates activations anew each step. By default glibc maps and unmaps blocks of
    that size, and the system zeroes every page at its first touch: up to a sixth of a ViT-S step.
    With one heap that never shrinks, a process keeps its peak. GLIBC_TUNABLES and MALLOC_* win.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in _ONE_HEAP:
            mallopt(parameter, value)


def keep_programs() -> None:
    """Keep compiled programs on disk, up to 2 GiB: later processes read instead of compiling.

    The directory is $XDG_CACHE_HOME/vit_jax/jax, or ~/.cache/vit_jax/jax. jax's settings win:
    JAX_COMPILATION_CACHE_DIR names another one, JAX_ENABLE_COMPILATION_CACHE=false turns it off.
    One line warns of a directory that cannot be written. Machines may share one: jax distinguishes
    programs of different CPUs and versions.
    """
    settings = jax.config.values
    if settings["jax_persistent_cache_min_compile_time_secs"] == 1.0:  # jax's default
        # A start runs dozens of small programs: 30-100 ms to compile each, a few ms to read.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"]:
        return
    try:
        unlimited = settings["jax_compilation_cache_max_size"] == -1
        # With a limit jax deletes by itself, and needs its own files beside every program.
        cache = cache_home() / "vit_jax" / ("jax" if unlimited else "jax_limited")
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


def _prune(cache: Path, max_bytes: int) -> None:
    """Delete the least recently used programs until the rest fits."""
    found = []
    for path in cache.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process deletes too
            stat = path.stat()
            # Without access times (noatime) this is the order of writing.
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
    `JAX_PROCESS_ID` describe a cluster by hand; `JAX_NUM_PROCESSES=1` alone makes a process on a
    cluster a run of its own. Must run before any other jax call.

    Raises UserError: an incomplete description, or a cluster that could not be joined.
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
    xla.set_port()
    try:
        jax.distributed.initialize(
            *by_hand,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except Exception as error:  # from jax and the clients of Kubernetes and metadata servers
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
            # A Cloud TPU VM, where jax sets TPU_ML_PLATFORM and queries the metadata server for
            # the pod's hosts; with TPU_SKIP_MDS_QUERY there is no such server.
            or (env.get("TPU_ML_PLATFORM") == "JAX" and "TPU_SKIP_MDS_QUERY" not in env)
        )
    return (
        # The step's count, not the job's: a batch script or a shell is not a task of srun.
        int(env.get("SLURM_STEP_NUM_TASKS") or 1) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE") or 1) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        # A pod of an Indexed Job; jax queries Kubernetes for the others.
        or ("KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env)
    )
