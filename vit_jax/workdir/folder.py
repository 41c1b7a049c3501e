# SPDX-License-Identifier: Apache-2.0
"""The workdir of a run, or a directory of cached logits: its files, lock and end."""

import contextlib
import fcntl
import json
import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from vit_jax.checkpoints import DIRECTORY as CHECKPOINTS
from vit_jax.checkpoints.config import check_path, steps_in
from vit_jax.distill import RECORD
from vit_jax.errors import IO_ERROR, MACHINE, UserError
from vit_jax.storage import bucket as bucket_folder
from vit_jax.storage import files, foreign, remote

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SPIKES = "spikes.jsonl"
TENSORBOARD = "tensorboard"
CLASSES = "classes.json"
TOKENIZER = "tokenizer.json"
CURVE = "learning_curve.png"
OUTPUT = "output.txt"  # what a sweep's run prints
FINISHED = "finished.json"
LOCK = ".lock"
# Files that a run opens for writing, so that none may be a link. A folder may, to a larger disk.
WRITTEN = (CONFIG, METRICS, SPIKES, CLASSES, TOKENIZER, CURVE, OUTPUT, FINISHED, LOCK)
_REMOTE = re.compile(r"(?:^|/)(?:gs|s3|hf|hdfs|https?):/")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def lock(workdir: Path, *, cache: bool = False, own: bool = False) -> Iterator[None]:
    """Create and lock `workdir`: two runs in one would mix their checkpoints.

    The kernel holds the lock, so that a killed process frees it at once. Only process 0 of a run
    locks, unless each has a workdir of its own.

    Args:
        workdir: the directory of a run, or of cached logits.
        cache: whether it is a directory of cached logits.
        own: whether each process of the run has a directory of its own.

    Raises UserError: another run holds it, it cannot be written, it is no path of a file system, or
    it is a directory of the other kind.
    """
    name = "--out" if cache else "workdir"
    check_local(workdir, name)
    if not cache:
        check_path(workdir)
    check_links(workdir)
    if not cache and (workdir / RECORD).exists():
        raise UserError(f"workdir {workdir} holds cached logits; choose another")
    runs = (workdir / CHECKPOINTS).exists() or (workdir / CONFIG).exists()
    if cache and runs and not (workdir / RECORD).exists():
        raise UserError(f"--out {workdir} is the workdir of a run; choose another")
    if jax.process_index() != 0 and not own:
        yield
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        file = open(workdir / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  (open while locked)
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


def check_links(directory: Path, names: Sequence[str] = WRITTEN) -> None:
    """Raise UserError where a file of a directory is a link, through which a run would write."""
    for path in (directory / name for name in names):
        if path.is_symlink():
            raise UserError(
                f"{path} is a link to {os.readlink(path)}, where a run would write; put the file "
                "itself there, or choose another directory"
            )


def resolve(directory: str | Path, index: int = 0) -> tuple[Path, str]:
    """Return the directory where a run works, and its bucket's address, "" for no bucket.

    If the run is kept in a bucket, each process (`index`) works in a directory of its own below
    $XDG_CACHE_HOME, or ~/.cache.

    Raises UserError: a run cannot be kept there.
    """
    if not (url := bucket_folder.address(directory)):
        path = Path(directory).expanduser().absolute()
        check_local(path)
    else:
        remote.filesystem(url)  # which needs a driver
        home = files.cache_home() / "vit_jax" / f"workdirs{f'_{index}' if index else ''}"
        path = home / url.replace("://", "/")
    check_path(path)
    return path, url


def address(path: Path) -> str:
    """Return the bucket's address of the run that works in `path`; "" for no bucket."""
    home = files.cache_home() / "vit_jax" / "workdirs"
    if not path.is_relative_to(home):
        return ""
    kind, *rest = path.relative_to(home).parts
    return f"{kind}://{'/'.join(rest)}"


def check_local(path: Path, name: str = "workdir") -> None:
    """Raise UserError for the address of a bucket; the message calls it `name`."""
    if _REMOTE.search(str(path)):
        raise UserError(f"{name} {path} is no path of a file system; mount the bucket, use that")


def has_checkpoints(workdir: Path, url: str = "") -> bool:
    """Return whether a run in `workdir`, kept in the bucket at `url`, has a checkpoint."""
    if steps_in(workdir / CHECKPOINTS):
        return True
    return bool(url) and bool(bucket_folder.Folder(url).names(CHECKPOINTS))


def saved_config(workdir: Path, url: str = "") -> dict[str, Any]:
    """Return the config tree of the run in `workdir`, kept in the bucket at `url`; {} for none."""
    if not has_checkpoints(workdir, url):
        return {}
    try:
        text = foreign.read(workdir / CONFIG)
    except OSError:
        if not url:
            return {}
        try:
            text = remote.read(f"{url}/{CONFIG}", foreign.MOST)
        except remote.MissingError:
            return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # the checkpoint's own metadata tells whether it fits
    return found if isinstance(found, dict) else {}


def mark_finished(workdir: Path, step: int) -> None:
    """Write that the run ended as planned after `step` steps."""
    files.write(workdir / FINISHED, json.dumps({"step": step}) + "\n")


def finished_step(workdir: Path) -> int | None:
    """Return the number of steps of a finished run; None for an unfinished one."""
    try:
        return int(json.loads(foreign.read(workdir / FINISHED))["step"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
