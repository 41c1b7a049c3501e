# SPDX-License-Identifier: Apache-2.0
"""`sweep status`: a table of what every run is doing."""

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.process.escapes import terminal
from vit_jax.settings.durations import format_duration
from vit_jax.sweeps import in_bucket, point, results
from vit_jax.sweeps.results import Outcome, State

NO_PLACE = "which sweep? name its DIR"
_EVERY = 2.0  # seconds between two looks
# In the order in which a screen that is too small shows them.
_COLOURS = {
    State.RUNNING: "cyan",
    State.FAILED: "red",
    State.INTERRUPTED: "yellow",
    State.FINISHED: "green",
    State.PRUNED: "magenta",
    State.WAITING: "dim",
}
_OVER = (State.FINISHED, State.PRUNED, State.FAILED)


@dataclasses.dataclass(kw_only=True)
class Status(Options):
    """Shows what every run is doing: on a terminal until all have ended."""

    place: Path = flag(Path(), "the sweep", "[DIR]", ask=NO_PLACE)
    once: bool = flag(False, "print the table and end")


def status(given: Status) -> None:
    """Show the table: on a terminal until all runs have ended, else once."""
    console, place = Console(highlight=False), in_bucket.opened(given.place)
    found = results.read(place, point.read_manifest(place))
    if given.once or not console.is_terminal:
        console.width = max(console.width, 160)  # of a pipe it would be 80
        console.print(table(found))
        console.print(summary(found))
        return
    with Live(console=console, screen=False, auto_refresh=False) as live:
        while True:
            grid = Table.grid()
            grid.add_row(table(most_telling(found, console.height - 4)))
            grid.add_row(summary(found))
            live.update(grid, refresh=True)
            if all(result.state in _OVER for result in found):
                return
            time.sleep(_EVERY)
            in_bucket.pull(place)
            found = results.read(place, point.read_manifest(place))


def most_telling(found: Sequence[Outcome], count: int) -> list[Outcome]:
    """Return as many runs as fit: those under way first, those that wait last."""
    order = list(_COLOURS)
    return sorted(found, key=lambda result: order.index(result.state))[: max(count, 1)]


def table(found: Sequence[Outcome]) -> Table:
    """Return a row for each run."""
    shown = Table(box=None, pad_edge=False)
    metric = found[0].point.metric if found else "metric"
    for header in ("run", "name", "state"):
        shown.add_column(header, no_wrap=True, min_width=12 if header == "run" else None)
    for header in ("step", Text(terminal(metric)), "time"):
        shown.add_column(header, justify="right", no_wrap=True)
    shown.add_column("", overflow="fold")
    for result in found:
        last = result.curve[-1][1] if result.curve else None
        shown.add_row(
            Text(terminal(result.point.run)),
            Text(terminal(result.point.name)),
            Text(result.state, style=_COLOURS[result.state]),
            f"{result.step:,}/{result.point.steps:,}",
            "" if last is None else f"{last:.4f}",
            format_duration(result.seconds) if result.seconds else "",
            Text(terminal(result.note)),
        )
    return shown


def summary(found: Sequence[Outcome]) -> str:
    """Return the number of runs in each state, and the time that remains."""
    counts = Counter(result.state for result in found)
    parts = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    left = remaining_seconds(found)
    rest = "" if left is None else f"; about {format_duration(left)} to go at this pace"
    return f"{len(found)} run{'s' * (len(found) != 1)}: {parts}{rest}"


def remaining_seconds(found: Sequence[Outcome]) -> float | None:
    """Estimate the time to the end from what is done; None if nothing is done, left or running."""
    running = sum(result.state is State.RUNNING for result in found)
    done = sum(_done(result) for result in found)
    left = sum(result.point.flops - _done(result) for result in found if result.state not in _OVER)
    seconds = sum(result.seconds for result in found)
    if not (running and done and left and seconds):
        return None
    return left * seconds / done / running


def _done(result: Outcome) -> float:
    return result.point.flops * min(result.step / result.point.steps, 1.0)


main = options.verb(Status, status)
