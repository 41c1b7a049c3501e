# SPDX-License-Identifier: Apache-2.0
"""What has become of the points of a sweep, read from their directories alone.

`table` is for a sweep of cases, whose points are named GROUP/CASE, each trained once or by many
seeds.
"""

import dataclasses
import enum
import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.recipes import vtab
from vit_jax.settings.measures import of
from vit_jax.storage import files, foreign
from vit_jax.sweeps import in_bucket, queue
from vit_jax.sweeps.point import Point
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir import folder as workdir

_ENDED = "ended.json"
_NAME = re.compile(r"([^/]+)/(.+?)(?: seed=\d+)?")
Cases = Mapping[str, Mapping[str, Sequence[float]]]  # group -> case -> one value for each seed


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


class EndedTrial(NamedTuple):
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
    elif (holder := queue.holder(place, point.run, sure=False)) is not None:
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


def ended(run: Path) -> EndedTrial | None:
    """Read how a run ended that is not started again; None for others."""
    try:
        values = json.loads(foreign.read(run / _ENDED))
        return EndedTrial(State(values["state"]), str(values["told"]), float(values["time"]))
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


def cases(found: Sequence[Outcome]) -> Cases:
    """Return the values of the finished runs by group and case; {} if a point has another name."""
    grouped: dict[str, dict[str, list[float]]] = {}
    for result in found:
        match = _NAME.fullmatch(result.point.name)
        if match is None:
            return {}
        if result.value is not None:
            grouped.setdefault(match[1], {}).setdefault(match[2], []).append(result.value)
    return grouped


def table(grouped: Cases, metric: str) -> list[tuple[str, ...]]:
    """Return the rows of a table, header first: the mean of each case, of each group, of all.

    Shares, such as accuracies, are in per cent. `+-` is the standard error over the seeds. VTAB's
    scores have the published ones beside them.
    """
    found = of(metric)
    scale, digits = (100, 2) if found and found.unit == "%" else (1, 4)
    means = {
        g: {c: scale * statistics.fmean(v) for c, v in own.items()} for g, own in grouped.items()
    }
    every = [value for own in means.values() for value in own.values()]
    of_vtab = {case for own in grouped.values() for case in own} <= set(vtab.TASKS)
    published = vtab.PUBLISHED if of_vtab else {}

    def rows() -> Iterator[tuple[str, ...]]:
        yield ("group", "case", metric, "+-", "runs", *(["published"] if published else []))
        for group, own in means.items():
            for case, mean in own.items():
                seeds = [scale * value for value in grouped[group][case]]
                spread = statistics.stdev(seeds) / math.sqrt(len(seeds)) if seeds[1:] else None
                error = "" if spread is None else f"{spread:.{digits}f}"
                theirs = [f"{published[case]:.1f}"] if published else []
                yield (group, case, f"{mean:.{digits}f}", error, str(len(seeds)), *theirs)
        whole = {
            **means,
            "all": {f"{g}/{c}": x for g, own in means.items() for c, x in own.items()},
        }
        for group, own in whole.items():
            theirs = [published[case.rpartition("/")[2]] for case in own] if published else []
            last = [f"{statistics.fmean(theirs):.2f}"] if theirs else []
            mean = f"{statistics.fmean(own.values()):.{digits}f}"
            yield (group, f"mean of {len(own)}", mean, "", "", *last)
        for name, mean in vtab.MEANS.items() if len(every) == len(published) else ():
            yield ("all", f"published, {name}", f"{mean:.2f}", "", "", "")

    return list(rows())
