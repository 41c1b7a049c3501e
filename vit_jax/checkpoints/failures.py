# SPDX-License-Identifier: Apache-2.0
"""Failed saves and reads: the cause that Orbax hides, and how a save ended in all processes."""

import contextlib
import errno
import functools
import logging
import os
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.checkpoints.manifest import Manifest
from vit_jax.errors import IO_ERROR, UserError

_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    text = record.pathname + record.getMessage()
    return not any(word in text for word in ("orbax", "OCDBT", "tensorstore"))


@functools.cache
def silence_orbax() -> None:
    """Hide what Orbax logs besides raising an error; `Checkpointer` logs the error.

    When one array of a damaged checkpoint fails to load, the reads of all others print "exception
    ignored" tracebacks of hundreds of lines, some at a later garbage collection. A failed save or
    load also leaves coroutines behind; vit_jax has no coroutines of its own.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_from_orbax)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if sys.is_finalizing():  # modules that this function needs may be gone
            return
        frames = traceback.extract_tb(unraisable.exc_traceback)
        closed = str(unraisable.exc_value) == "Event loop is closed"
        if not closed and not any("orbax" in frame.filename for frame in frames):
            before(unraisable)

    sys.unraisablehook = hook


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, among which is the one that Orbax hides."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def reading_error(error: BaseException) -> str | None:
    """Return why this machine could not read a checkpoint; None if the checkpoint is at fault.

    A missing file, or a directory in its place, is damage to the checkpoint.
    """
    for link in chain(error):
        number = link.errno if isinstance(link, OSError) else None
        if isinstance(link, MemoryError):
            number = errno.ENOMEM
        elif isinstance(link, RuntimeError) and "start new thread" in str(link):
            number = errno.EAGAIN
        elif found := re.search(r"os_error_code='(\d+)'", str(link)):
            number = int(found[1])
        if number is not None and number not in _DAMAGE:
            return f"{os.strerror(number)} (errno {number})"
        # A device, a collective or a time limit failed; the files may be intact.
        if isinstance(link, jax.errors.JaxRuntimeError | TimeoutError):
            return (str(link).splitlines() or [type(link).__name__])[0][:160]
    return None


def cause(error: BaseException) -> str:
    """Return the cause of a failed save as one short line."""
    links = [getattr(link, "strerror", None) or str(link) for link in chain(error)]
    code = re.search(r"os_error_code='(\d+)'", "\n".join(links))
    return os.strerror(int(code[1])) if code else links[-1].split("\n")[0][:160]


class SaveFailed(UserError):
    """A checkpoint could not be written; the older ones are intact."""

    status = IO_ERROR


class Ended(NamedTuple):
    """How a save ended; `damaged` if the files do not hold what was saved."""

    step: int
    manifest: Manifest
    failed: SaveFailed | None = None
    damaged: bool = False


def agreed(ended: Ended) -> Ended:
    """Return how a save of all processes ended: it failed if it failed in one of them."""
    if jax.process_count() == 1:
        return ended
    state = np.asarray(0 if ended.failed is None else 2 if ended.damaged else 1)
    worst = multihost_utils.process_allgather(state).max()
    failed = ended.failed
    if worst and failed is None:
        failed = SaveFailed(
            f"the checkpoint of step {ended.step} could not be saved by another process, whose "
            "line says why"
        )
    return Ended(ended.step, ended.manifest, failed, bool(worst == 2))


def failed(
    directory: Path, step: int, num_bytes: int, newest: int | None, error: BaseException
) -> SaveFailed:
    """Build the error of a failed save: its cause, the free space, the newest intact checkpoint."""
    free = "unknown"
    with contextlib.suppress(OSError):  # the disk is gone
        free = f"{shutil.disk_usage(directory).free / 1e6:,.1f}"
    older = "there is no other" if newest is None else f"newest intact: step {newest}"
    return SaveFailed(
        f"could not save the checkpoint of step {step} to {directory} (needs up to "
        f"{num_bytes / 1e6:,.1f} MB, {free} MB free; {older}): {cause(error)}"
    )
