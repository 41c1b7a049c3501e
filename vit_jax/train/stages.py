# SPDX-License-Identifier: Apache-2.0
"""What a run does between its steps: log, evaluate, save; and how it ends."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.checkpoints.checkpointer import Checkpointer, CorruptCheckpoints, SaveFailed
from vit_jax.config import Config
from vit_jax.evals import Classify
from vit_jax.train import build as build_lib
from vit_jax.train import early_stop
from vit_jax.train.broken import Broken
from vit_jax.train.clock import Clock, Stage
from vit_jax.train.early_stop import Tally
from vit_jax.train.lost_process import is_lost
from vit_jax.train.meter import Meter
from vit_jax.train.progress import Progress
from vit_jax.train.state import TrainState
from vit_jax.train.stragglers import Stragglers
from vit_jax.train.writers import MetricWriter

_WITHOUT_OTHERS = 30.0  # seconds


@dataclasses.dataclass(frozen=True)
class Stages:
    """What one call of `fit` works with; each method is one stage of it."""

    cfg: Config
    parts: build_lib.Parts
    mesh: Mesh
    evaluators: Mapping[str, Classify]
    checkpoints: Checkpointer
    meter: Meter
    broken: Broken
    clock: Clock
    stragglers: Stragglers
    writer: MetricWriter
    progress: Progress
    metadata: dict[str, Any]
    place: Path
    images_at_peak: float | None  # images per second at which MFU is 1

    def log(self, step: int, *, everything: bool) -> None:
        """Write the training metrics since the last line; `everything` waits for the last step."""
        with self.clock.spent(Stage.STEP):
            scalars = self.meter.read(everything=everything)
            self.broken.agree()
            scalars |= self.broken.scalars() | self.stragglers.scalars(self.clock.seconds())
        scalars |= self._speed() | self.clock.scalars()
        self.writer.write(step, scalars)
        self.progress.report(scalars)

    def _speed(self) -> dict[str, float]:
        rate = self.progress.images_per_sec()
        if rate is None:
            return {}
        speed = {"perf/images_per_sec": rate}
        if self.images_at_peak is not None:
            speed["perf/mfu"] = rate / self.images_at_peak
        return speed

    def due_evals(self, step: int) -> list[str]:
        """Name the evaluations that training itself runs after a step."""
        plan = self.parts.plan
        last = step == plan.total_steps
        return [n for n, every in plan.eval_every.items() if due(step, every) or (last and every)]

    def evaluate(
        self,
        state: TrainState,
        step: int,
        names: Sequence[str],
        *,
        final: bool,
        written: Collection[str] = (),
    ) -> dict[str, float]:
        """Run evaluations by name, of parameters and moving average.

        `final` ones write their report. Those `written` are shown only: at this step the log has
        what the parameters were then.
        """
        metrics: dict[str, float] = {}
        logged: dict[str, float] = {}
        if names:
            self._finish_steps()
        for name in names:
            run, predict = self.evaluators[name].run, self.parts.predict
            report_dir = self.place / name if final and self.cfg.evals[name].report else None
            with self.clock.spent(Stage.EVAL), self.progress.paused(f"evaluating {name}"):
                scores = run(predict, {"params": state.params, **state.model_state}, report_dir)
                found = {f"{name}/{key}": value for key, value in scores.items()}
                if state.ema is not None:
                    scores = run(predict, state.ema)
                    found |= {f"{name}_ema/{key}": value for key, value in scores.items()}
            metrics |= found
            logged |= {} if name in written else found
        if logged:
            self.writer.write(step, logged)
        if metrics:
            self.progress.report(metrics)
        return metrics

    def save(
        self,
        step: int,
        state: TrainState,
        metrics: Mapping[str, float],
        tally: Tally,
        *,
        must_succeed: bool,
    ) -> None:
        """Start a save; one that fails midway (a full disk) is told and tried again next time."""
        self._finish_steps()
        with self.clock.spent(Stage.SAVE):
            self.broken.agree()
            try:
                metadata = self.metadata | early_stop.to_json(tally)
                metadata |= self.broken.to_json() | self.meter.to_json()
                self.checkpoints.save(step, state, metadata=metadata, metrics=metrics)
            except SaveFailed as error:
                self.progress.message(f"warning: {error}")
                if must_succeed:
                    # The failure may be of the save before, and this one under way.
                    self.checkpoints.wait()
                    if step not in self.checkpoints.steps():
                        raise

    def wait_for_save(self) -> None:
        """Wait until the save that is under way is on disk."""
        with self.clock.spent(Stage.SAVE):
            self.checkpoints.wait()

    @contextlib.contextmanager
    def keeping_saves(self) -> Iterator[None]:
        """Let the save under way reach the disk, by whatever error what is inside ends."""
        try:
            yield
        except BaseException as error:
            # A save of several processes ends when all have done their part: if one is lost, never.
            failed_together = isinstance(error, jax.errors.JaxRuntimeError) or is_lost(error)
            may_be_alone = jax.process_count() > 1 and failed_together
            with contextlib.suppress(SaveFailed):  # the run's own error is reported
                self.checkpoints.wait(_WITHOUT_OTHERS if may_be_alone else None, alone=True)
            raise

    def _finish_steps(self) -> None:
        """Wait for the steps in flight, as the next stage would: the time is theirs."""
        with self.clock.spent(Stage.STEP):
            self.meter.wait()

    def finish(self, state: TrainState, done: Mapping[str, float]) -> dict[str, float]:
        """Run the evaluations of the final state that are not `done` yet."""
        rest = [name for name in self.cfg.evals if f"{name}/loss" not in done]
        last, keeping = self.parts.plan.total_steps, self.cfg.checkpoint
        found = self.evaluate(state, last, rest, final=True)
        best = self.checkpoints.best_step() if keeping.keep_best else None
        if best is not None and best != last:
            self.progress.message(
                f"the metrics above are of step {last:,}, the last; --from={self.place} takes step "
                f"{best:,}, the best by {keeping.metric}, and --from={self.place}@latest this one"
            )
        return found

    def finish_early(self, step: int, tally: Tally) -> tuple[TrainState, dict[str, float]]:
        """Restore the best checkpoint of a run that ends at `step`, and run every evaluation."""
        abstract = build_lib.abstract_state(self.parts, self.mesh)
        while (best := self.checkpoints.best_step()) is not None:
            try:
                state = self.checkpoints.restore_step(abstract, best).state
            except CorruptCheckpoints as damage:
                self.progress.message(f"warning: {damage}")
                continue
            self.progress.message(early_stop.describe(tally, step, best))
            return state, self.evaluate(
                state, step, list(self.cfg.evals), final=True, written=self.due_evals(step)
            )
        raise CorruptCheckpoints(
            f"{self.place} should end with the best parameters by {tally.metric}, but no intact "
            "checkpoint has it; set checkpoint.patience=0 to go on"
        )

    def tell_time(self, step: int) -> None:
        """Write and say where this call's wall time went: the last line of its log."""
        times = self.clock.scalars()
        del times["perf/data_wait"]  # of what came after the last step's row: nothing
        self.writer.write(step, times)
        self.progress.message(str(self.clock))


def due(step: int, every: int) -> bool:
    """Say whether what happens `every` so many steps (0: never) happens after this one."""
    return every > 0 and step % every == 0
