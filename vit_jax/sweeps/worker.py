# SPDX-License-Identifier: Apache-2.0
"""One worker of a sweep: claims a point, trains it, claims the next."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vit_jax.settings.durations import format_duration
from vit_jax.sweeps import in_bucket, queue, results
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.queue import claim, holder
from vit_jax.sweeps.results import State
from vit_jax.sweeps.trial import Report, Stopping, train


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process that trains one point of a sweep after another.

    Attributes:
        place: the sweep's directory.
        stopping: whether a signal asked it to stop.
        since: when the sweep was started, in seconds since 1970; what fails later is not retried.
        environment: variables of its runs, which name their devices.
    """

    place: Path
    stopping: Stopping
    since: float
    environment: Mapping[str, str]
    log: Callable[[str], None]

    def run_grid(self, points: Iterable[Point]) -> None:
        """Train the points that are neither finished nor in training, until none is left."""
        trained = True
        while trained:
            trained = False
            for point in points:
                if self.stopping.requested:
                    return
                if not self.is_free(point):
                    continue
                with claim(self.place, point.run) as descriptor:
                    if descriptor is not None and not self._is_done(point):
                        self.train(point, descriptor)
                        trained = True

    def run_search(
        self, study: Any, most: int, propose: Callable[[Any], Point], *, prunes: bool
    ) -> None:
        """Train what `propose` makes of Optuna's trials, until `most` of them have been made."""
        while not self.stopping.requested:
            for orphan, run in queue.orphans(study):
                if run is None or holder(self.place, run) is None:
                    queue.again(study, orphan)
            trial = queue.ask(study, most)
            if trial is None:
                return
            point = propose(trial)
            with claim(self.place, point.run) as descriptor:
                if descriptor is None:  # another trial of the very same run
                    queue.drop(study, trial)
                    continue
                queue.assign(trial, point.run)

                def report(step: int, value: float, trial: Any = trial) -> bool:
                    trial.report(value, step)
                    return prunes and trial.should_prune()

                if self.train(point, descriptor, report) is State.INTERRUPTED:
                    queue.again(study, trial)
                else:
                    queue.end(study, trial, results.read_one(self.place, point).value)

    def is_free(self, point: Point) -> bool:
        """Return whether a point is to be trained and no worker trains it."""
        # In this order: files of one that is in training here are not to be fetched.
        return holder(self.place, point.run) is None and not self._is_done(point)

    def _is_done(self, point: Point) -> bool:
        """Return whether a run has finished, or has failed since the sweep was started."""
        run = point.workdir(self.place)
        in_bucket.pull(run)
        how = results.ended(run)
        return results.is_finished(run) or (how is not None and how.time >= self.since)

    def train(self, point: Point, descriptor: int, report: Report | None = None) -> State:
        """Train a claimed point, and print what became of it."""
        of_all = {"environment": self.environment, "stopping": self.stopping, "log": self.log}
        state = train(point, self.place, descriptor=descriptor, report=report, **of_all)
        result = results.read_one(self.place, point)
        how = results.ended(point.workdir(self.place))
        told = f"{state} at step {result.step:,} of {point.steps:,}"
        if state is State.FINISHED:
            value = f"{result.curve[-1][1]:.4f}" if result.curve else "never finite"
            told = f"{point.metric} {value} in {format_duration(result.seconds)}"
        elif how is not None and how.state is State.FAILED:
            told = how.note
        self.log(f"{point.name}: {told} ({point.run})")
        return state
