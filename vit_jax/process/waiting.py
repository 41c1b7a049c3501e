# SPDX-License-Identifier: Apache-2.0
"""Messages about slow work, so that no minute passes without one."""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from vit_jax.process import escapes
from vit_jax.settings.durations import format_duration

_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
_COMPILING = 3.0  # seconds before the first line about a compilation
_EVERY = 60.0  # seconds between lines
_SILENT = 5.0  # seconds before the first line of other work
# Time of XLA's CPU compiler over the time of jax's lowering, which runs just before it on the same
# machine: 15 (Mixer), 30 to 55 (ViT, Swin, CaiT), 75 to 90 (ResNet, RegNet).
_RATIO = 50

_lowered: dict[int, float] = {}  # by thread, the seconds of its last lowering
_compiling: dict[int, threading.Event] = {}  # by thread, set when its compilation ends


@contextlib.contextmanager
def said(what: str, after: float = _SILENT) -> Iterator[None]:
    """Print to stderr, on process 0, that work takes more than `after` seconds, and how long.

    Args:
        what: the work, such as "reading the labels of X".
        after: seconds before the first line; another line follows every minute.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(what, ended, after), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr, on process 0, how many parts of some work are done.

    A terminal shows a bar; otherwise a line is printed after five seconds and then every minute.

    Args:
        what: the work, such as "looking at the images of X".
        total: the number of parts.

    Yields:
        A function that takes the number of parts that were done since its last call.
    """
    start = time.monotonic()
    said, count = start - _EVERY + _SILENT, 0
    if sys.stderr.isatty() and is_first() and total:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what.replace("[", "\\["), total=total)
            yield lambda more: bar.update(task, advance=more)
        return

    def done(more: int) -> None:
        nonlocal said, count
        count += more
        now = time.monotonic()
        if now - said > _EVERY and count < total:
            said = now
            left = format_duration((now - start) / count * (total - count))
            _say(f"{what}: {count:,} of {total:,}, about {left} left")

    yield done


@functools.cache  # listeners stay for the life of the process
def say_compilations() -> None:
    """Print lines as `said` does for every program that XLA compiles; on a CPU with an estimate."""
    jax.monitoring.register_scalar_listener(_on_start)
    jax.monitoring.register_event_duration_secs_listener(_on_end)


def by_another_compiler() -> None:
    """Drop the estimate for the program that this thread has just lowered: no CPU will run it."""
    _lowered.pop(threading.get_ident(), None)


def _on_start(event: str, value: float | int, **facts: Any) -> None:
    del value
    if event == _COMPILE:
        thread = threading.get_ident()
        _compiling[thread] = threading.Event()
        name = str(facts.get("fun_name", "")).removeprefix("jit(").removesuffix(")").lstrip("_")
        seconds = _RATIO * _lowered.pop(thread, 0.0) if jax.default_backend() == "cpu" else 0.0
        about = f", about {float(f'{seconds:.1g}'):g} s" if seconds > _COMPILING else ""
        work = f"compiling {name or 'a program'}", _compiling[thread], _COMPILING, about
        threading.Thread(target=_watch, args=work, daemon=True).start()


def _on_end(event: str, duration_secs: float, **facts: Any) -> None:
    del facts
    thread = threading.get_ident()
    if event == _LOWER:
        _lowered[thread] = duration_secs
    elif event == _COMPILE and thread in _compiling:
        _compiling.pop(thread).set()


def _watch(what: str, ended: threading.Event, after: float, about: str = "") -> None:
    start = time.monotonic()
    if ended.wait(after):
        return
    _say(f"{what}{about}")
    while not ended.wait(_EVERY):
        _say(f"still {what}, for {format_duration(time.monotonic() - start)}")
    _say(f"{what} took {format_duration(time.monotonic() - start)}")


def is_first() -> bool:
    """Return whether this is process 0, without starting a backend."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def _say(text: str) -> None:
    if is_first():
        print(escapes.terminal(text), file=sys.stderr, flush=True)
