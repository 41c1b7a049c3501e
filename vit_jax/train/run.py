# SPDX-License-Identifier: Apache-2.0
"""What a run does between its steps: log, evaluate, save; and how it ends."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax

from vit_jax.analysis.peaks import peak_flops
from vit_jax.checkpoints.checkpointer import Checkpointer, CorruptCheckpoints, SaveFailed
from vit_jax.config import Config, Plan
from vit_jax.evals import is_accuracy
from vit_jax.train import broken as broken_lib
from vit_jax.train import build as build_lib
from vit_jax.train import early_stop, spikes, workdir
from vit_jax.train import meter as meter_lib
from vit_jax.train.begin import Begun, Opened, Position
from vit_jax.train.broken import Broken
from vit_jax.train.clock import Clock, Stage
from vit_jax.train.lost_process import is_lost
from vit_jax.train.meter import Meter
from vit_jax.train.progress import Progress
from vit_jax.train.state import TrainState
from vit_jax.train.stop import Stop
from vit_jax.train.stragglers import Stragglers
from vit_jax.train.writers import MetricWriter, make_writer, read_jsonl
from vit_jax.visual.curve import learning_curve

_WITHOUT_OTHERS = 30.0  # seconds


@dataclasses.dataclass(frozen=True)
class Run:
    """The services of one call of `fit`; each method is what happens between two steps.

    Attributes:
        opened: config, data and programs.
        metadata: what every checkpoint says of the run.
        examples_at_peak: examples per second at which MFU is 1; None for unknown devices.
    """

    opened: Opened
    metadata: dict[str, Any]
    checkpoints: Checkpointer
    meter: Meter
    broken: Broken
    stragglers: Stragglers
    writer: MetricWriter
    progress: Progress
    examples_at_peak: float | None

    @property
    def cfg(self) -> Config:
        """The run's config."""
        return self.opened.cfg

    @property
    def clock(self) -> Clock:
        """Of the run's wall time."""
        return self.opened.clock

    @property
    def plan(self) -> Plan:
        """Durations in steps."""
        return self.opened.parts.plan

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
        if self.examples_at_peak is not None:
            speed["perf/mfu"] = rate / self.examples_at_peak
        return speed

    def due_evals(self, step: int) -> list[str]:
        """Name the evaluations that training itself runs after a step."""
        last = step == self.plan.total_steps
        periods = self.plan.eval_every
        return [n for n, every in periods.items() if due(step, every) or (last and every)]

    def evaluate(
        self,
        state: TrainState,
        step: int,
        names: Sequence[str],
        *,
        final: bool,
        already_logged: Collection[str] = (),
    ) -> dict[str, float]:
        """Run evaluations by name, of parameters and moving average.

        `final` ones write their report. Names in `already_logged` are printed but not logged again:
        the log already holds this step's values.
        """
        metrics: dict[str, float] = {}
        logged: dict[str, float] = {}
        if names:
            self._finish_steps()
        for name in names:
            run = self.opened.evaluators[name].run
            predictors = self.opened.parts.objective.predictors
            report_dir = self.opened.place / name if final else None
            with self.clock.spent(Stage.EVAL), self.progress.paused(f"evaluating {name}"):
                scores = run(predictors, {"params": state.params, **state.model_state}, report_dir)
                found = {f"{name}/{key}": value for key, value in scores.items()}
                if state.ema is not None:
                    scores = run(predictors, state.ema)
                    found |= {f"{name}_ema/{key}": value for key, value in scores.items()}
            metrics |= found
            logged |= {} if name in already_logged else found
        if logged:
            self.writer.write(step, logged)
        if metrics:
            self.progress.report(metrics)
        return metrics

    def save(self, at: Position, *, must_succeed: bool) -> None:
        """Start a save; one that fails midway (a full disk) is logged and tried again next time."""
        self._finish_steps()
        with self.clock.spent(Stage.SAVE):
            self.broken.agree()
            try:
                metadata = self.metadata | early_stop.to_json(at.tally)
                metadata |= self.broken.to_json() | self.meter.to_json()
                self.checkpoints.save(at.step, at.state, metadata=metadata, metrics=at.metrics)
            except SaveFailed as error:
                self.progress.message(f"warning: {error}")
                if must_succeed:
                    # The failure may be of the save before, and this one under way.
                    self.checkpoints.wait()
                    if at.step not in self.checkpoints.steps():
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
            # A save of several processes is done when all have done their part; one may be lost.
            lost = isinstance(error, jax.errors.JaxRuntimeError) or is_lost(error)
            alone = jax.process_count() == 1 or not lost
            with contextlib.suppress(SaveFailed):  # the error that ends the run is raised
                self.checkpoints.wait(None if alone else _WITHOUT_OTHERS, alone=True)
            raise

    def _finish_steps(self) -> None:
        """Wait for the steps in flight, as the next stage would: the time is theirs."""
        with self.clock.spent(Stage.STEP):
            self.meter.wait()

    def conclude(self, at: Position, stop: Stop) -> tuple[Position, bool]:
        """Evaluate what is left and draw the curve, or say that the run was interrupted.

        Returns:
            The end, of the best parameters where the run stopped early; and whether it is finished.
        """
        if at.tally.ends(self.cfg.checkpoint.patience):
            at = self._restore_best(at)
        elif at.step < self.plan.total_steps or stop.signal is not None:
            self._log_time(at.step)
            self.progress.message(f"{stop}: saved step {at.step:,}; the same command continues")
            return at, False
        else:
            at = dataclasses.replace(at, metrics=at.metrics | self._evaluate_rest(at))
        if jax.process_index() == 0:
            place = self.opened.place
            curve = place / workdir.CURVE
            rows = read_jsonl(place / workdir.METRICS)
            learning_curve(rows, curve, title=place.name, is_accuracy=is_accuracy)
            self.progress.message(f"learning curve: {curve}")
        self._log_time(at.step)
        return at, True

    def _evaluate_rest(self, at: Position) -> dict[str, float]:
        """Run the evaluations of the final state that have no metrics yet."""
        done = {name.partition("/")[0] for name in at.metrics}
        rest = [name for name in self.cfg.evals if name not in done]
        found = self.evaluate(at.state, at.step, rest, final=True)
        keeping, place = self.cfg.checkpoint, self.opened.place
        best = self.checkpoints.best_step() if keeping.keep_best else None
        if best is not None and best != at.step:
            self.progress.message(
                f"the metrics above are of step {at.step:,}, the last; --from={place} takes step "
                f"{best:,}, the best by {keeping.metric}, and --from={place}@latest this one"
            )
        return found

    def _restore_best(self, at: Position) -> Position:
        """Restore the best checkpoint of a run that stops early, and run every evaluation."""
        opened = self.opened
        # Free it before restoring the best checkpoint.
        jax.tree.map(lambda leaf: leaf.delete(), at.state)
        abstract = build_lib.abstract_state(opened.parts, opened.mesh)
        while (best := self.checkpoints.best_step()) is not None:
            try:
                state = self.checkpoints.restore_step(abstract, best).state
            except CorruptCheckpoints as damage:
                self.progress.message(f"warning: {damage}")
                continue
            self.progress.message(early_stop.describe(at.tally, at.step, best))
            logged, names = self.due_evals(at.step), list(self.cfg.evals)
            metrics = self.evaluate(state, at.step, names, final=True, already_logged=logged)
            return dataclasses.replace(at, state=state, metrics=metrics)
        raise CorruptCheckpoints(
            f"{opened.place} should end with the best parameters by {at.tally.metric}, but no "
            "intact checkpoint has it; set checkpoint.patience=0 to go on"
        )

    def _log_time(self, step: int) -> None:
        """Log where this call's wall time went: the last line of its log."""
        times = self.clock.scalars()
        del times["perf/data_wait"]  # no step came after the last step's row
        self.writer.write(step, times)
        self.progress.message(str(self.clock))


def due(step: int, every: int) -> bool:
    """Say whether what happens `every` so many steps (0: never) happens after this one."""
    return every > 0 and step % every == 0


@contextlib.contextmanager
def services(opened: Opened, begun: Begun, checkpoints: Checkpointer) -> Iterator[Run]:
    """Open the log and the progress display, and whatever else a run writes to."""
    cfg, place, step = opened.cfg, opened.place, begun.position.step
    with contextlib.ExitStack() as stack:
        writer = make_writer(cfg.log, place, step=step, run_config=begun.metadata["config"])
        stack.callback(writer.close)
        if begun.changed:
            writer.write(step, begun.changed)
        total = opened.parts.plan.total_steps
        progress = stack.enter_context(Progress(total, cfg.data.batch_size, start_step=step))
        log_spike = spikes.make_log(
            cfg.faults, cfg.data, opened.source, place, seed=cfg.seed, say=progress.message
        )
        saved = begun.saved
        yield Run(
            opened=opened,
            metadata=begun.metadata,
            checkpoints=checkpoints,
            meter=Meter(cfg.faults, log_spike, known=saved.get(meter_lib.KEY)),
            broken=Broken(
                cfg.data.max_broken,
                opened.source.example_id,
                known=saved.get(broken_lib.KEY, []),
                say=progress.message,
            ),
            stragglers=Stragglers(),
            writer=writer,
            progress=progress,
            examples_at_peak=_examples_at_peak(opened),
        )


def _examples_at_peak(opened: Opened) -> float | None:
    """Return the examples per second at which MFU is 1; None where the devices' peak is unknown."""
    cfg, mesh = opened.cfg, opened.mesh
    peak = peak_flops(mesh.devices.flat[0].device_kind, cfg.model.dtype.value)
    if peak is None:
        return None
    uphill = cfg.optim.sam_rho > 0
    return peak * mesh.size / build_lib.example_flops(opened.parts, uphill=uphill)
