# SPDX-License-Identifier: Apache-2.0
"""What workers share: a sweep's points, each trained by one of them, and a machine's devices."""

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.storage import foreign
from vit_jax.sweeps import in_bucket
from vit_jax.sweeps.in_bucket import CLAIMS, locked
from vit_jax.sweeps.point import RUNS

_GPUS = "CUDA_VISIBLE_DEVICES"
_GLANCE = 0.2  # seconds, longer than a reader of a claim holds its lock


@contextlib.contextmanager
def claim(place: Path, run: str) -> Iterator[int | None]:
    """Hold a run of the sweep in `place` alone; yields the lock's descriptor, or None if held.

    A process that inherits it holds the lock too: a run outlives its worker, and starts only once.
    """
    path = foreign.inside(place, f"{CLAIMS}/{run}", str(place))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        if not locked(file.fileno()):
            time.sleep(_GLANCE)
            if not locked(file.fileno()):
                yield None
                return
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}")
        file.flush()
        with in_bucket.claim(place, place / RUNS / run) as free:
            yield file.fileno() if free else None


def holder(place: Path, run: str, *, sure: bool = True) -> str | None:
    """Return which process has claimed a run; None where it is free; see `in_bucket.holder`."""
    path = foreign.inside(place, f"{CLAIMS}/{run}", str(place))
    with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as file:
        if not locked(file.fileno(), fcntl.LOCK_SH):
            return file.read(200) or "a worker"
    return in_bucket.holder(place, run, sure=sure) or None


def share(worker: int, count: int) -> Mapping[str, str]:
    """Return the variables by which a worker's runs see its GPUs only; none without GPUs.

    Raises UserError: more workers than GPUs.
    """
    files = re.findall(r"(?m)^nvidia(\d+)$", "\n".join(os.listdir("/dev")))
    gpus = sorted(files, key=int)
    if _GPUS in os.environ:
        gpus = [gpu for gpu in os.environ[_GPUS].split(",") if gpu]
    if not gpus or count == 1:
        return {}
    if count > len(gpus):
        raise UserError(f"--workers={count}, but here are {len(gpus)} GPUs; one worker needs one")
    return {_GPUS: ",".join(gpus[worker::count])}


def keep_to_cores(worker: int, count: int) -> None:
    """Keep this thread, and what it starts, to its part of the cores: faster than turns."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []  # Linux
    if 1 < count <= len(cores):
        os.sched_setaffinity(0, cores[worker::count])
