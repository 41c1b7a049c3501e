# SPDX-License-Identifier: Apache-2.0
"""The workdir of a run, or a directory of cached logits: its files, lock and end."""

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
from vit_jax.checkpoints.config import check_path, steps_in
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
    """Create and lock `workdir`: two runs in one would mix their checkpoints.

    The kernel holds the lock, so that a killed process frees it at once. Only process 0 of a run
    locks.

    Args:
        workdir: the directory of a run; with `cache`, of cached logits.
        cache: which of the two.

    Raises UserError: another run holds it, it cannot be written, it is no path of a file system, or
    it is a directory of the other kind.
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


def check(path: Path, name: str = "workdir") -> None:
    """Raise UserError for a directory that cannot keep a run; the message calls it `name`."""
    check_local(path, name)
    check_path(path)


def check_local(path: Path, name: str = "workdir") -> None:
    """Raise UserError for the address of a bucket; the message calls it `name`."""
    if _REMOTE.search(str(path)):
        raise UserError(f"{name} {path} is no path of a file system; mount the bucket, use that")


def has_checkpoints(workdir: Path) -> bool:
    """Return whether a run in `workdir` can continue from a checkpoint."""
    return bool(steps_in(workdir / CHECKPOINTS))


def mark_finished(workdir: Path, step: int) -> None:
    """Write that the run ended as planned after `step` steps."""
    files.write(workdir / _FINISHED, json.dumps({"step": step}) + "\n")


def finished_step(workdir: Path) -> int | None:
    """Return the number of steps of a finished run; None for an unfinished one."""
    try:
        return int(json.loads((workdir / _FINISHED).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
