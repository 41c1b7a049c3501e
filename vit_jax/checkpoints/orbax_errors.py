# SPDX-License-Identifier: Apache-2.0
"""Errors of Orbax: their true cause, and the lines to keep off the screen."""

import errno
import functools
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator

import jax

_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    text = record.pathname + record.getMessage()
    return not any(word in text for word in ("orbax", "OCDBT", "tensorstore"))


@functools.cache
def silence_orbax() -> None:
    """Hide the lines and tracebacks that Orbax emits besides raising; `Checkpointer` logs its own.

    When one array of a damaged checkpoint fails to load, the reads of all others end in "exception
    ignored" tracebacks of hundreds of lines, some of them at a later garbage collection. What is
    left of a failed save or load are coroutines, of which vit_jax has none of its own.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_from_orbax)
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if sys.is_finalizing():  # the modules that this needs may be gone
            return
        frames = traceback.extract_tb(unraisable.exc_traceback)
        closed = str(unraisable.exc_value) == "Event loop is closed"
        if not closed and not any("orbax" in frame.filename for frame in frames):
            before(unraisable)

    sys.unraisablehook = hook


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those it came from, in which Orbax hides the true one."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def reading_error(error: BaseException) -> str | None:
    """Return why this machine did not let a checkpoint be read; None if none of its reasons.

    A file that is not there, or a directory in its place, is no such reason: it is damage.
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
    """Return in one short line why a save failed."""
    links = [getattr(link, "strerror", None) or str(link) for link in chain(error)]
    code = re.search(r"os_error_code='(\d+)'", "\n".join(links))
    return os.strerror(int(code[1])) if code else links[-1].split("\n")[0][:160]
