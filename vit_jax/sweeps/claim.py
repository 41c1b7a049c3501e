# SPDX-License-Identifier: Apache-2.0
"""Who trains a point: a lock that lives as long as the worker or the run that it started."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

CLAIMS = "claims"
# One that only looks whether a point is claimed holds it for less than this.
_GLANCE = 0.2


@contextlib.contextmanager
def claim(place: Path, run: str) -> Iterator[int | None]:
    """Hold a run of the sweep in `place` alone.

    Yields the lock's file descriptor, or None where somebody else holds it. A process that inherits
    the descriptor holds the lock too: a run outlives its worker, and is not started again.
    """
    path = place / CLAIMS / run
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        if not _locked(file.fileno()):
            time.sleep(_GLANCE)
            if not _locked(file.fileno()):
                yield None
                return
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield file.fileno()


def holder(place: Path, run: str) -> str | None:
    """Say which process has claimed a run; None where it is free."""
    try:
        with open(place / CLAIMS / run, encoding="utf-8") as file:
            return None if _locked(file.fileno(), fcntl.LOCK_SH) else file.read() or "a worker"
    except FileNotFoundError:
        return None


def _locked(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
