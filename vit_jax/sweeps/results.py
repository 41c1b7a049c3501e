# SPDX-License-Identifier: Apache-2.0
"""What has become of the points of a sweep, read from their directories alone."""

import dataclasses
import enum
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.storage import files, foreign
from vit_jax.sweeps import in_bucket, sharing
from vit_jax.sweeps.point import Point
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir import folder as workdir

_ENDED = "ended.json"


class State(enum.StrEnum):
    """What a point is doing."""

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A point and how far it is.

    Attributes:
        step: of its last line of metrics; 0 where there is none.
        curve, train_loss: (step, value) of the sweep's metric at each evaluation, and of the loss.
        seconds: that its processes have run, by its metrics.
        note: which process trains it, or why it failed.
    """

    point: Point
    state: State
    step: int
    curve: list[tuple[int, float]]
    train_loss: list[tuple[int, float]]
    seconds: float
    note: str

    @property
    def value(self) -> float | None:
        """The metric at the end of a finished run; else None."""
        finished = self.state is State.FINISHED and self.curve
        return self.curve[-1][1] if finished else None


class Ended(NamedTuple):
    """Why workers do not start a run again: FAILED or PRUNED, the reason, seconds since 1970."""

    state: State
    note: str
    time: float


def read(place: Path, points: Sequence[Point]) -> list[Outcome]:
    """Read what each point of the sweep in `place` has come to."""
    return [read_one(place, point) for point in points]


def read_one(place: Path, point: Point) -> Outcome:
    """Read what a point has come to."""
    run = point.workdir(place)
    rows = read_jsonl(run / workdir.METRICS)
    state, note = (State.INTERRUPTED if rows else State.WAITING), ""
    if is_finished(run):
        state = State.FINISHED
    elif (holder := sharing.holder(place, point.run, sure=False)) is not None:
        state, note = State.RUNNING, holder
    elif (how := ended(run)) is not None:
        state, note = how.state, how.note
    step = rows[-1]["step"] if rows else 0
    curve, train_loss = series(rows, point.metric), series(rows, "train/loss")
    return Outcome(point, state, step, curve, train_loss, _seconds(rows), note)


def series(rows: Sequence[dict], metric: str) -> list[tuple[int, float]]:
    """Return (step, value) of a metric, where it was finite."""
    return [(row["step"], row[metric]) for row in rows if _is_number(row.get(metric))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _seconds(rows: Sequence[dict]) -> float:
    """Sum what the clock of each process showed last."""
    total = last = 0.0
    for _, wall in series(rows, "perf/wall_seconds"):
        total += last if wall < last else 0.0
        last = wall
    return total + last


def is_finished(run: Path) -> bool:
    """Return whether the run in a directory has ended as planned."""
    return workdir.finished_step(run) is not None


def ended(run: Path) -> Ended | None:
    """Read how a run ended that is not started again; None for others."""
    try:
        values = json.loads(foreign.read(run / _ENDED))
        return Ended(State(values["state"]), str(values["told"]), float(values["time"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def mark_ended(run: Path, state: State, note: str) -> None:
    """Note that a run failed or was pruned."""
    values = {"state": state, "told": note, "time": time.time()}
    files.write(run / _ENDED, json.dumps(values) + "\n")
    in_bucket.send(run / _ENDED)


def unmark(run: Path) -> None:
    """Forget how a run ended, before it is started again."""
    (run / _ENDED).unlink(missing_ok=True)
    in_bucket.send(run / _ENDED)
