# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C before and after a command's own work, and signals that a process is to ignore."""

from __future__ import annotations  # a Python that is too old reads this file too

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType

INTERRUPTED = 130  # the exit status, as the shell has it for SIGINT


def end_at_once() -> None:
    """Have Ctrl-C end the process in one line from now on, whatever it is at.

    Python's own KeyboardInterrupt would be raised in the middle of an import, where extensions make
    other errors of it, or at the end of the process, where Python prints its traceback.
    """
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _raise):
        signal.signal(signal.SIGINT, _end)


def interruptible() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, for a command that has things to put in order.

    In an import it still ends the process: a command has nothing to put in order there.
    """
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    at = frame
    while at is not None:
        if at.f_code.co_filename == "<frozen importlib._bootstrap>":
            _end(number, frame)
        at = at.f_back
    signal.default_int_handler(number, frame)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error: it makes the import of an extension fail."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def heed(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]],
) -> dict[signal.Signals, object]:
    """Handle signals, and return the handlers before; skip those that this process must ignore.

    `nohup` has a process ignore SIGHUP, and a shell's script its background jobs SIGINT: there they
    are meant for others.
    """
    return {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }


def restore(handlers: Mapping[signal.Signals, object]) -> None:
    """Put back what `heed` returned."""
    for number, handler in handlers.items():
        signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
