# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C before and after a command's own work, and handlers that respect ignored signals."""

from __future__ import annotations  # a Python that is too old parses this file too

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType

INTERRUPTED = 130  # the exit status, a shell's for SIGINT


def end_at_once() -> None:
    """Make Ctrl-C end the process in one line at any point.

    Python's KeyboardInterrupt in the middle of an import is turned into other errors by extensions;
    at the end of the process Python prints its traceback.
    """
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _raise):
        signal.signal(signal.SIGINT, _end)


def interruptible() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, for a command that cleans up.

    During an import it still ends the process: nothing needs cleaning up there.
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
    """Return whether Ctrl-C caused an error, as in a failed import of an extension."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def heed(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]],
) -> dict[signal.Signals, object]:
    """Install handlers and return the previous ones; skip signals that this process must ignore.

    `nohup` makes a process ignore SIGHUP, and a shell script makes its background jobs ignore
    SIGINT: those are meant for others. Python lets the main thread alone install handlers: in
    another one there are none, and signals stay the program's own.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }


def restore(handlers: Mapping[signal.Signals, object]) -> None:
    """Restore the handlers that `heed` returned."""
    for number, handler in handlers.items():
        # None stands for a handler that was not installed from Python, which cannot be put back.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # pyright: ignore[reportArgumentType]
