# SPDX-License-Identifier: Apache-2.0
"""The folder of a run's checkpoints: what is deleted, set aside or cleared away in it."""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from vit_jax.checkpoints import storage

_log = logging.getLogger(__name__)

_PAUSES = (0.1, 0.3, 1.0, 0.0)  # seconds: threads of a save that failed may still be writing
_DELETED = ".deleted"  # renamed before removal: a kill half-way leaves no half of a checkpoint
_DAMAGED = ".damaged"  # set aside under this name: whoever wants to rescue some of it can


def delete(path: Path) -> None:
    """Delete an intact checkpoint; a disk that does not allow it keeps it."""
    with contextlib.suppress(OSError):
        doomed = path.with_name(f"{path.name}{_DELETED}")
        path.rename(doomed)
        shutil.rmtree(doomed)


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that another may take its place, and say so."""
    names = (f"{path.name}{_DAMAGED}{n}" for n in ("", *range(2, 1000)))
    aside = next(p for p in map(path.with_name, names) if not p.exists())
    with contextlib.suppress(OSError):
        path.rename(aside)
        _log.warning("checkpoint %s is damaged and kept as %s", path.name, aside)


def clear(directory: Path) -> None:
    """Remove what is no checkpoint: of saves and deletions that failed or were killed."""
    with contextlib.suppress(OSError):  # a disk that is gone; the save will say so
        doomed = [
            entry
            for entry in directory.iterdir()
            if storage.TEMPORARY in entry.name or entry.name.endswith(_DELETED)
        ]
        for pause in _PAUSES:
            for entry in doomed:
                shutil.rmtree(entry, ignore_errors=True)
            doomed = [entry for entry in doomed if entry.exists()]
            if not doomed:
                return
            time.sleep(pause)


def try_to_write(directory: Path) -> None:
    """Try what a save does first: where it fails, Orbax's threads wait for it for 20 minutes.

    Raises:
        OSError: the disk is full, gone or not to be written to.
    """
    os.rmdir(tempfile.mkdtemp(suffix=_DELETED, dir=directory))
