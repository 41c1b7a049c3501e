# SPDX-License-Identifier: Apache-2.0
"""What a run does between its steps, log, evaluate, save, and how it ends."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from vit_jax import evals
from vit_jax.checkpoints.checkpointer import Checkpointer, SaveFailed
from vit_jax.config.tree import Config, Plan
from vit_jax.cost.scale import peak_flops
from vit_jax.errors import NonFinite, UserError
from vit_jax.objectives import Extras
from vit_jax.process import waiting
from vit_jax.train import build as build_lib
from vit_jax.train import early_stop
from vit_jax.train.begin import Opened, Position
from vit_jax.train.health import spikes, unreadable
from vit_jax.train.health.lost_process import is_lost
from vit_jax.train.health.stragglers import Stragglers
from vit_jax.train.health.unreadable import Unreadable
from vit_jax.train.report import metric_buffer
from vit_jax.train.report.goodput import Goodput, Phase
from vit_jax.train.report.metric_buffer import MetricBuffer
from vit_jax.train.report.progress import Progress
from vit_jax.train.report.writers import MetricWriter, make_writer
from vit_jax.train.state import TrainState

if TYPE_CHECKING:
    from vit_jax.workdir.mirror import Mirror

_MAX_WAIT = 30.0  # seconds, for a save that may lack a process


@dataclasses.dataclass(frozen=True)
class Run:
    """The services of one call of `fit`; the methods run between two steps.

    Attributes:
        opened: config, data and programs.
        metadata: what each checkpoint is saved with, the same for all.
        frozen: what the step takes and never changes.
        buffer: metrics of steps that the devices may still compute.
        unreadable: examples that could not be read, which others replace.
        stragglers: who waits for whom, of several processes.
        examples_at_peak: examples per second at which MFU is 1; None for unknown devices.
        bucket: what copies the workdir to a bucket; None where it is kept on this machine alone.
    """

    opened: Opened
    metadata: dict[str, Any]
    frozen: Any
    checkpoints: Checkpointer
    buffer: MetricBuffer
    unreadable: Unreadable
    stragglers: Stragglers
    writer: MetricWriter
    progress: Progress
    examples_at_peak: float | None
    bucket: "Mirror | None"

    @property
    def cfg(self) -> Config:
        """The run's config."""
        return self.opened.cfg

    @property
    def goodput(self) -> Goodput:
        """The run's wall time by phase."""
        return self.opened.goodput

    @property
    def plan(self) -> Plan:
        """The durations in steps."""
        return self.opened.parts.plan

    def log(self, step: int, *, everything: bool) -> None:
        """Log the training metrics since the last line; `everything` waits for the last step."""
        with self.goodput.spent(Phase.STEP):
            scalars = self.buffer.read(everything=everything)
            self.unreadable.agree()
            scalars |= self.unreadable.scalars() | self.stragglers.scalars(self.goodput.seconds())
        scalars |= self._speed() | self.goodput.scalars()
        scalars |= {} if self.bucket is None else self.bucket.scalars()
        self.writer.write(step, scalars)
        self.progress.report(scalars)
        of_steps = {
            name.removeprefix("train/"): x for name, x in scalars.items() if "train/" in name
        }
        if told := self.opened.parts.objective.alarm(of_steps):
            self.progress.message(f"warning: step {step:,}: {told}")

    def _speed(self) -> dict[str, float]:
        rate = self.progress.images_per_sec()
        if rate is None:
            return {}
        speed = {"perf/images_per_sec": rate}
        if self.examples_at_peak is not None:
            speed["perf/mfu"] = rate / self.examples_at_peak
        return speed

    def due_evals(self, step: int) -> list[str]:
        """Return the names of the evaluations due after a step.

        One without a period runs at the end, in `conclude`.
        """
        last = step == self.plan.total_steps
        periods = self.plan.eval_every
        return [n for n, every in periods.items() if due(step, every) or (last and every)]

    def evaluate(self, state: TrainState, names: Sequence[str], *, report: str) -> dict[str, float]:
        """Run the named evaluations on the parameters, then on their moving average, if any.

        With `report`, which says of what, "step 1,616, the last", they write their reports, of
        whichever of the two the run stands for as weights. Returns the metrics as "name/key" and
        "name_ema/key".
        """
        metrics: dict[str, float] = {}
        if names:
            self._finish_steps()
        for name in names:
            run = self.opened.evaluators[name].run
            predictors = self.predictors(name)
            folder = self.opened.path / name if report else None
            of_params, of_average = (None, folder) if self.average_ranks else (folder, None)
            what, spent = f"evaluating {name}", self.goodput.spent(Phase.EVAL)
            with spent, self.progress.paused(what), waiting.said(what, after=30):
                variables = self.whole({"params": state.params, **state.model_state})
                scores = run(predictors, variables, of_params, report)
                metrics |= {f"{name}/{key}": value for key, value in scores.items()}
                if state.ema is not None:
                    scores = run(predictors, self.whole(state.ema), of_average, report)
                    metrics |= {f"{name}_ema/{key}": value for key, value in scores.items()}
        return metrics

    def log_evals(
        self, step: int, metrics: Mapping[str, float], *, logged: Collection[str] = ()
    ) -> None:
        """Log and print what `evaluate` returned; of those in `logged` the log has this step's."""
        old = {*logged, *(f"{name}_ema" for name in logged)}
        if new := {key: x for key, x in metrics.items() if key.partition("/")[0] not in old}:
            self.writer.write(step, new)
        if metrics:
            self.progress.report(metrics)

    @property
    def average_ranks(self) -> bool:
        """Whether the run as weights is its moving average."""
        group = self.cfg.checkpoint.metric.partition("/")[0]
        ranks = group.endswith("_ema") or self.cfg.objective.needs_average
        return self.cfg.ema_decay > 0 and ranks

    def predictors(self, name: str) -> evals.Predictors:
        """Return what an evaluation asks the model by."""
        return self.opened.parts.objective.of_patch(self.cfg.evals[name].patch).predictors

    def whole(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the variables with which the model computes."""
        params = self.opened.parts.objective.whole(variables["params"], self.frozen)
        return {**variables, "params": params}

    def save(self, at: Position, *, must_succeed: bool) -> None:
        """Start a save in the background.

        A failure of it, or of the save before it, is a warning, and the next save that is due tries
        again; with `must_succeed` it is raised, unless this step is on disk.
        """
        self._finish_steps()
        with self.goodput.spent(Phase.SAVE):
            self.unreadable.agree()
            try:
                metadata = self.metadata | early_stop.to_json(at.tally)
                metadata |= self.unreadable.to_json() | self.buffer.to_json()
                self.checkpoints.save(at.step, at.state, metadata=metadata, metrics=at.metrics)
            except SaveFailed as error:
                self.progress.message(f"warning: {error}")
                if must_succeed:
                    self.checkpoints.wait()
                    if at.step not in self.checkpoints.steps():
                        raise

    @contextlib.contextmanager
    def saved_first(self, at: Position) -> Iterator[None]:
        """Save a position before an error of an evaluation ends the run.

        Several processes cannot: of theirs one may have failed alone.
        """
        try:
            yield
        except NonFinite:  # there is nothing worth saving
            raise
        except Exception as error:
            if jax.process_count() > 1 or at.state is None:
                raise
            try:
                self.save(at, must_succeed=True)
                self.wait_for_save()
            except UserError as unsaved:
                self.progress.message(f"warning: {unsaved}")
                raise error from None
            told = f"step {at.step:,} is saved, and the same command continues"
            if isinstance(error, UserError):
                error.args = (f"{error}; {told}",)
            else:
                self.progress.message(told)
            raise

    def wait_for_save(self) -> None:
        """Wait until the save in progress is on disk."""
        with self.goodput.spent(Phase.SAVE), waiting.said("saving", after=30):
            self.checkpoints.wait()

    @contextlib.contextmanager
    def keeping_saves(self) -> Iterator[None]:
        """Finish the save in progress if an error ends what is inside."""
        try:
            yield
        except BaseException as error:
            # A save needs every process; where one may be gone, wait only so long.
            one_may_be_gone = isinstance(error, jax.errors.JaxRuntimeError) or is_lost(error)
            limit = _MAX_WAIT if jax.process_count() > 1 and one_may_be_gone else None
            with contextlib.suppress(SaveFailed):  # the error that ends the run is raised
                self.checkpoints.wait(limit, alone=True)
            raise

    def _finish_steps(self) -> None:
        """Wait for the steps in flight, so that their time does not count for the next phase."""
        with self.goodput.spent(Phase.STEP):
            self.buffer.wait()


def due(step: int, every: int) -> bool:
    """Return whether something that happens `every` so many steps (0: never) is due."""
    return every > 0 and step % every == 0


@contextlib.contextmanager
def services(
    opened: Opened,
    position: Position,
    checkpoints: Checkpointer,
    extras: Extras,
    metadata: dict[str, Any],
    bucket: "Mirror | None",
) -> Iterator[Run]:
    """Open the log, the progress display and the run's other outputs.

    `extras` are on the devices; the rest is as in `Run`.
    """
    cfg, path, step, saved = opened.cfg, opened.path, position.step, position.saved
    with contextlib.ExitStack() as stack:
        writer = make_writer(cfg.log, path, step=step, run_config=metadata["config"])
        stack.callback(writer.close)
        total = opened.parts.plan.total_steps
        progress = stack.enter_context(Progress(total, cfg.data.batch_size, start_step=step))
        log_spike = spikes.make_log(
            cfg.faults, cfg.data, opened.source, path, seed=cfg.seed, log=progress.message
        )
        yield Run(
            opened=opened,
            metadata=metadata,
            frozen=extras.frozen,
            checkpoints=checkpoints,
            buffer=MetricBuffer(cfg.faults, log_spike, saved=metric_buffer.saved_in(saved)),
            unreadable=Unreadable(
                cfg.data.max_broken,
                opened.source.example_id,
                counted=unreadable.counted_in(saved),
                log=progress.message,
            ),
            stragglers=Stragglers(),
            writer=writer,
            progress=progress,
            examples_at_peak=_examples_at_peak(opened),
            bucket=bucket,
        )


def _examples_at_peak(opened: Opened) -> float | None:
    """Return the examples per second at which MFU is 1; None where the devices' peak is unknown."""
    cfg, mesh = opened.cfg, opened.mesh
    peak = peak_flops(mesh.devices.flat[0].device_kind, cfg.model.dtype.value)
    if peak is None:
        return None
    return peak * mesh.size / build_lib.example_flops(opened.parts)
