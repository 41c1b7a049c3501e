# SPDX-License-Identifier: Apache-2.0
"""The directory of one run, or of cached logits: what is in it, its lock, its mark of the end."""

import contextlib
import fcntl
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import jax

from vit_jax import files
from vit_jax.checkpoints import DIRECTORY as CHECKPOINTS
from vit_jax.checkpoints.config import check_path
from vit_jax.distill.cache import RECORD
from vit_jax.errors import IO_ERROR, MACHINE, UserError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SPIKES = "spikes.jsonl"
TENSORBOARD = "tensorboard"
CLASSES = "classes.json"
CURVE = "learning_curve.png"
_FINISHED = "finished.json"
_LOCK = ".lock"
_REMOTE = re.compile(r"(?:^|/)(?:gs|s3|hdfs|https?):/")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def lock(workdir: Path, *, cache: bool = False) -> Iterator[None]:
    """Create `workdir` and hold it alone: two runs writing to one would mix their checkpoints.

    The kernel holds the lock, so one left by a killed process is free at once. Only process 0 of a
    run locks.

    Args:
        workdir: the directory of a run; with `cache`, the one of cached logits.
        cache: which of the two.

    Raises:
        UserError: another run holds it, it cannot be written, it is no path of a file system, or
            one of the other kind.
    """
    name = "--out" if cache else "workdir"
    if cache:
        check_local(workdir, name)
    else:
        check(workdir)
    if not cache and (workdir / RECORD).exists():
        raise UserError(f"workdir {workdir} holds cached logits; choose another")
    runs = (workdir / CHECKPOINTS).exists() or (workdir / CONFIG).exists()
    if cache and runs and not (workdir / RECORD).exists():
        raise UserError(f"--out {workdir} is the workdir of a run; choose another")
    if jax.process_index() != 0:
        yield
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        file = open(workdir / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115  (open while locked)
    except OSError as error:
        refusal = UserError(f"cannot write to {name} {workdir}: {error.strerror}")
        refusal.status = IO_ERROR if error.errno in MACHINE else refusal.status
        raise refusal from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(
                f"{name} {workdir} is in use by {holder}; wait for it, stop it, or choose another"
            ) from None
        except OSError as error:  # some network file systems
            _log.warning("cannot lock %s (%s): run only one process here", workdir, error.strerror)
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield  # closing the file unlocks it


def check(place: Path, name: str = "workdir") -> None:
    """Refuse a directory in which a run cannot be kept; `name` is what the message calls it.

    Raises:
        UserError: the address of a bucket, or a path by which checkpoints are not found again.
    """
    check_local(place, name)
    check_path(place)


def check_local(place: Path, name: str = "workdir") -> None:
    """Refuse the address of a bucket; `name` is what the message calls it.

    Raises:
        UserError: it is one.
    """
    if _REMOTE.search(str(place)):
        raise UserError(f"{name} {place} is no path of a file system; mount the bucket, use that")


def has_checkpoints(workdir: Path) -> bool:
    """Say whether a run in `workdir` has something to continue from."""
    place = workdir / CHECKPOINTS
    return place.is_dir() and any(entry.name.isdecimal() for entry in place.iterdir())


def mark_finished(workdir: Path, step: int) -> None:
    """Record that the run ended as planned after `step` steps."""
    files.write(workdir / _FINISHED, json.dumps({"step": step}) + "\n")


def finished_step(workdir: Path) -> int | None:
    """Return the number of steps after which the run finished; None if it has not."""
    try:
        return int(json.loads((workdir / _FINISHED).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
