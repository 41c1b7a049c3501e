# SPDX-License-Identifier: Apache-2.0
"""A run's progress for a person: a live bar on a terminal, plain lines elsewhere."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import SupportsFloat

import jax
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from vit_jax.process import escapes
from vit_jax.settings import measures
from vit_jax.settings.durations import format_duration

# The first steps compile and fill the queues; the rate is measured after them.
_WARMUP_STEPS = 3
_COMPILING = "compiling"

# Format of a metric by the last component of its name, in the order of a line.
_FORMATS: dict[str, Callable[[float], str]] = {
    "loss": lambda x: f"loss {x:.4f}",
    "top1": lambda x: f"top1 {x:.1%}",
    "top5": lambda x: f"top5 {x:.1%}",
    "lr": lambda x: f"lr {x:.1e}",
    "images_per_sec": lambda x: f"{x:,.0f} img/s" if x >= 100 else f"{x:.3g} img/s",
    "mfu": lambda x: f"mfu {x:.1%}",
}


def format_scalars(scalars: Mapping[str, SupportsFloat]) -> str:
    """Format metrics with a format as `loss 0.8123  top1 71.2%  val: loss 0.9000  top1 70.0%`."""
    parts = [(*name.rpartition("/"), float(value)) for name, value in scalars.items()]
    others = sorted({last for *_, last, _ in parts if measures.of(last)} - _FORMATS.keys())
    formats = _FORMATS | {key: functools.partial(_declared, key) for key in others}
    groups: dict[str, list[str]] = {}
    for key, write in formats.items():
        for group, _, last, value in parts:
            if last == key:
                shown = "" if group in ("train", "perf") else group
                groups.setdefault(shown, []).append(write(value))
    return "  ".join(
        (f"{group}: " if group else "") + "  ".join(groups[group]) for group in sorted(groups)
    )


def _declared(key: str, value: float) -> str:
    found = measures.of(key)
    assert found is not None, key
    return f"{key} {found.written(value)}"


class Pace:
    """Steps per second of this process, without the first steps, which compile."""

    def __init__(self, start_step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = start_step
        self._warm_at = start_step + _WARMUP_STEPS
        self._begin: tuple[float, int] | None = None  # time and step where measuring began
        self._window: tuple[float, int] | None = None  # and where the present window began
        self._idle = 0.0  # seconds of the window not spent on training

    def advance(self, step: int) -> None:
        """Record that `step` steps are done."""
        self._step = step
        if self._begin is None and step >= self._warm_at:
            self._begin = self._window = (self._clock(), step)
            self._idle = 0.0

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Exclude the time inside from the rate, but not from the time that remains."""
        start = self._clock()
        try:
            yield
        finally:
            self._idle += self._clock() - start

    def steps_per_sec(self) -> float | None:
        """Return the rate since the last call, None while it is unknown."""
        if self._window is None:
            return None
        now = self._clock()
        then, step = self._window
        seconds = now - then - self._idle
        if self._step <= step or seconds <= 0:
            return None
        self._window, self._idle = (now, self._step), 0.0
        return (self._step - step) / seconds

    def remaining(self, total_steps: int) -> float | None:
        """Return the seconds until `total_steps` at the mean rate so far; None while unknown."""
        if self._begin is None or self._step <= self._begin[1]:
            return None
        per_step = (self._clock() - self._begin[0]) / (self._step - self._begin[1])
        return per_step * (total_steps - self._step)


class Progress:
    """Shows a run's progress on stdout, on process 0 alone; use `message` inside it, not print."""

    def __init__(
        self,
        total_steps: int,
        batch_size: int,
        *,
        start_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._batch_size = batch_size
        self._step = start_step
        self._pace = Pace(start_step, clock)
        self._quiet = jax.process_index() != 0
        self._bar: Bar | None = None
        console = Console()
        if console.is_terminal and not self._quiet:
            width = len(f"{total_steps}/{total_steps}")
            # Metrics that do not fit the window are cut at the end.
            count = "[bold]{task.completed}/{task.total}"
            self._bar = Bar(
                TextColumn(count, table_column=Column(min_width=width)),
                BarColumn(bar_width=12),
                TextColumn("{task.percentage:3.0f}%", table_column=Column(min_width=4)),
                TextColumn("{task.fields[eta]}", table_column=Column(min_width=10)),
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
                console=console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(
                "", total=total_steps, completed=start_step, text="", eta=""
            )
        self._text = _COMPILING

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
            self._refresh()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._refresh()
            self._bar.stop()

    def advance(self, step: int) -> None:
        """Record that `step` steps are done; cheap enough for every step."""
        self._step = step
        self._pace.advance(step)
        if self._text == _COMPILING:
            self._text = ""
        self._refresh()

    def images_per_sec(self) -> float | None:
        """Return images per second since the last call without pauses; None while unknown."""
        rate = self._pace.steps_per_sec()
        return None if rate is None else rate * self._batch_size

    def report(self, scalars: Mapping[str, SupportsFloat]) -> None:
        """Show metrics of the present step."""
        text = escapes.terminal(format_scalars(scalars))
        if self._bar:
            if any(name.startswith("train/") for name in scalars):
                self._text = text
                self._refresh()
            else:  # an evaluation stays readable above the bar
                self._bar.console.print(f"step {self._step}  {text}", markup=False, highlight=False)
        else:
            done = self._step / self._total if self._total else 1.0
            line = f"step {self._step}/{self._total}  {done:.0%}  {text}"
            self.message(line + self._eta())

    def message(self, text: str) -> None:
        """Show one line of text."""
        text = escapes.terminal(text)
        if self._quiet:
            return
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    @contextlib.contextmanager
    def paused(self, doing: str) -> Iterator[None]:
        """Show `doing`, such as "evaluating val", instead of the training metrics."""
        before, self._text = self._text, doing
        self._refresh()
        with self._pace.idle():
            yield
        self._text = before

    def _eta(self) -> str:
        seconds = self._pace.remaining(self._total)
        return "" if not seconds else f"  eta {format_duration(seconds)}"

    def _refresh(self) -> None:
        if self._bar:
            eta = self._eta().strip()
            self._bar.update(self._task, completed=self._step, eta=eta, text=self._text)
