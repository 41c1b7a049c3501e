# SPDX-License-Identifier: Apache-2.0
"""What the environment tells XLA and JAX before they start: flags, threads, the port to meet at."""

import os
import re

import jax
from jax._src import xla_bridge  # jax has no public seam

# 512-bit vectors make element-wise work 1.5 to 2 times faster on CPUs that have them; the schedule
# that minimises memory makes a ViT-S step 1.15 times faster than the concurrent one.
_CPU_FLAGS = (
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
)
_NUMBER = "PJRT_NPROC"  # of the environment, which XLA reads
_PER_DEVICE = 4  # 1 deadlocks
# A product is cut over the threads, and how it is cut decides its last bits.
FIXED = 64
# The port of a Slurm step: jax's own range, above Linux's ports for connections.
_FIRST, _COUNT = 61_440, 4096
_APART = 509  # no factor of the count

_lent = ""  # what this process wrote into the environment


def set_flags() -> None:
    """Set XLA's flags for CPUs, except those that XLA_FLAGS sets."""
    given = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in _CPU_FLAGS if flag.split("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([*missing, given]).strip()


def set_port() -> None:
    """Give each step of a job a port of its own; JAX_COORDINATOR_PORT wins.

    jax derives one from the job alone, so that two steps at once would take the same. The first
    step's is jax's.
    """
    if "SLURM_STEP_ID" in os.environ:
        job, step = (int(os.environ[f"SLURM_{name}_ID"]) for name in ("JOB", "STEP"))
        port = _FIRST + (job + _APART * step) % _COUNT
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(port))


def lend_threads(*, fixed: bool = False) -> str:
    """Give virtual CPU devices enough threads, the environment's number first.

    A collective holds a thread of each device until all devices arrive. XLA's pool has one thread
    per core or device: with as many devices as threads, programs in quick succession wait for each
    other's threads, and after 40 s XLA ends the process.

    Args:
        fixed: as many for any number of devices and cores, for `mesh.reproducible`, which makes two
            devices of a process's one, unless it is told how many or has others beside it; with
            the flags of the command line, for a call from Python.

    Returns:
        What is to be said of a number that is too small, or not the fixed one; "" for nothing.
    """
    global _lent
    has_started = xla_bridge.backends_are_initialized()
    if fixed and not has_started:
        set_flags()
    count = _devices()
    if fixed and not (count or has_started or jax.distributed.is_initialized()):
        jax.config.update("jax_num_cpu_devices", count := 2)
    if not fixed and count < 2:
        return ""
    wanted, given = str(FIXED if fixed else _PER_DEVICE * count), os.environ.get(_NUMBER, "")
    if has_started and jax.default_backend() != "cpu":
        return ""
    if given not in ("", _lent) or (given and has_started):  # the user's, or it is too late
        return _other_bits(given) if fixed and given != wanted else ""
    if not has_started:
        os.environ[_NUMBER] = _lent = wanted
        return ""
    if fixed:
        return _other_bits("one for each core")
    return (
        f"warning: JAX was started before, with a thread for each core: a step on {count} devices "
        f"may wait for ever; set {_NUMBER}={wanted} in the environment, or train first"
    )


def _devices() -> int:
    """Return how many devices the CPU is told to be; 0 where nobody tells."""
    flag = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(jax.config.values["jax_num_cpu_devices"], int(flag[1]) if flag else 0)


def _other_bits(number: str) -> str:
    return (
        f"warning: XLA's threads are {number}, and bits are equal to those of runs with as many; "
        f"mesh.reproducible itself takes {_NUMBER}={FIXED}"
    )
