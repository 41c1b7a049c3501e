# SPDX-License-Identifier: Apache-2.0
"""The training loop: short, and in the order in which things happen."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import config as config_lib
from vit_jax import data, sharding
from vit_jax.analysis.peaks import peak_flops
from vit_jax.checkpoints.checkpointer import Checkpointer, CorruptCheckpoints, SaveFailed
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.evals import Classify
from vit_jax.train import build as build_lib
from vit_jax.train import early_stop, report, workdir
from vit_jax.train import metadata as metadata_lib
from vit_jax.train import start as start_lib
from vit_jax.train import teacher as teacher_lib
from vit_jax.train.batches import device_batches
from vit_jax.train.early_stop import Tally
from vit_jax.train.logit_cache import LogitCache
from vit_jax.train.meter import Meter
from vit_jax.train.progress import Progress
from vit_jax.train.state import TrainState
from vit_jax.train.stop import INTERRUPTED, Stop
from vit_jax.train.writers import MetricWriter, make_writer


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call of `fit` ended.

    Attributes:
        state: the last state, or the best one of a run that stopped early; None where the run had
            finished before.
        step: the number of steps done.
        status: exit status: 0 finished, 75 interrupted (the same command continues).
        metrics: of the evaluations at the end, or of the last ones before a stop.
    """

    state: TrainState | None
    step: int
    status: int
    metrics: dict[str, float]


def fit(cfg: Config, directory: str | Path, *, allow_config_change: bool = False) -> Result:
    """Train the run of `cfg` in a workdir: continue what is there, else start from `cfg.init`.

    Killed at any moment and called again, it ends with the same parameters, bit for bit, as if it
    had never been killed. Checkpoints, metrics, config and class names are kept in the workdir.

    Raises:
        UserError: anything wrong with config, data, workdir or checkpoints.
    """
    config_lib.check(cfg)
    place = Path(directory).expanduser().absolute()
    if cfg.init.weights and not workdir.has_checkpoints(place):
        start_lib.check(cfg)
    source = build_lib.open_train(cfg)
    eval_sources = build_lib.open_evals(cfg, source)
    mesh = sharding.make_mesh(cfg.mesh)
    config_lib.check_batch(cfg, sharding.batch_parts(mesh))
    parts = build_lib.build(cfg, len(source))
    evaluators = {
        name: build_lib.evaluator(cfg, name, split, mesh) for name, split in eval_sources.items()
    }
    total = parts.plan.total_steps
    with workdir.lock(place), jax.set_mesh(mesh):
        checkpoints = Checkpointer(place / workdir.CHECKPOINTS, cfg.checkpoint)
        latest = checkpoints.latest_step()
        saved = {} if latest is None else checkpoints.metadata(latest)
        if saved and not allow_config_change:
            metadata_lib.check_unchanged(cfg, saved["config"], place)
        finished, tally = workdir.finished_step(place), early_stop.resume(cfg.checkpoint, saved)
        if finished == total:
            _say(f"{place} has finished its {total:,} steps; nothing to do")
            return Result(None, total, 0, {})
        if finished is not None and finished == latest and tally.ends(cfg.checkpoint.patience):
            _say(
                f"{place} stopped early at step {finished:,}; nothing to do (a larger "
                "checkpoint.patience goes on)"
            )
            return Result(None, finished, 0, {})
        teacher = teacher_lib.read(cfg, source, total * cfg.data.batch_size)
        if saved and not allow_config_change:
            teacher_lib.check_unchanged(teacher, saved, place)
        restored = checkpoints.restore(build_lib.abstract_state(parts, mesh))
        if restored is not None:
            state, start = restored.state, restored.step
            tally = early_stop.resume(cfg.checkpoint, restored.metadata)
            if start > total:
                raise UserError(
                    f"{place} is at step {start:,}, beyond duration={cfg.duration!r} ({total:,} "
                    "steps); choose a longer duration or another workdir"
                )
            _say(f"continuing {place} at step {start:,} of {total:,}")
        else:
            state, told = start_lib.initial_state(cfg, parts, mesh)
            start = 0
            if told:
                _say(told)
        frozen = teacher_lib.place(teacher.frozen, build_lib.placed(parts.frozen, mesh))
        teacher = dataclasses.replace(teacher, frozen={})  # from now on on the devices alone
        metadata = metadata_lib.describe(cfg, source, teacher)
        metadata_lib.write(place, metadata)
        with contextlib.ExitStack() as stack:
            writer = make_writer(cfg.log, place, step=start, run_config=metadata["config"])
            stack.callback(writer.close)
            progress = Progress(total, cfg.data.batch_size, start_step=start)
            stack.enter_context(progress)
            stop = stack.enter_context(Stop())
            run = _Run(
                cfg=cfg,
                parts=parts,
                mesh=mesh,
                frozen=frozen,
                cache=teacher.cache,
                evaluators=evaluators,
                checkpoints=checkpoints,
                writer=writer,
                progress=progress,
                metadata=metadata,
                place=place,
                images_at_peak=_images_at_peak(cfg, parts, mesh),
            )
            state, step, metrics, tally = run.train(state, start, tally, source, stop)
            if tally.ends(cfg.checkpoint.patience):
                del state  # its memory is the best one's
                state, metrics = run.finish_early(step, tally)
            elif step < total:
                progress.message(f"{stop}: saved step {step:,}; the same command continues")
                return Result(state, step, INTERRUPTED, metrics)
            else:
                metrics |= run.finish(state, metrics)
        if jax.process_index() == 0:
            report.learning_curve(place / workdir.METRICS, place / workdir.CURVE, title=place.name)
            _say(f"learning curve: {place / workdir.CURVE}")
            workdir.mark_finished(place, step)
        return Result(state, step, 0, metrics)


@dataclasses.dataclass(frozen=True)
class _Run:
    """What one call of `fit` works with; each method is one stage of the loop."""

    cfg: Config
    parts: build_lib.Parts
    mesh: Mesh
    frozen: Any
    cache: LogitCache | None
    evaluators: Mapping[str, Classify]
    checkpoints: Checkpointer
    writer: MetricWriter
    progress: Progress
    metadata: dict[str, Any]
    place: Path
    images_at_peak: float | None

    def train(
        self, state: TrainState, start: int, tally: Tally, source: data.Source, stop: Stop
    ) -> tuple[TrainState, int, dict[str, float], Tally]:
        """Run from `start` to the end, planned or early, or to a request to stop.

        Returns the last state, its step, its evaluations and the tally of early stopping.
        """
        plan, step, metrics = self.parts.plan, start, {}
        patience = self.cfg.checkpoint.patience
        train_step = build_lib.compile_step(self.parts, self.mesh)
        meter = Meter()
        stream = device_batches(self.cfg, source, self.mesh, start, self.cache)
        with contextlib.closing(stream) as batches:
            while step < plan.total_steps and not tally.ends(patience):
                with meter.waiting():
                    batch = next(batches)
                state, values = train_step(state, self.frozen, batch)
                step += 1
                meter.add(step, values)
                self.progress.advance(step)
                last = step == plan.total_steps
                if last or _due(step, plan.log_every):
                    self._log(step, meter.read(everything=last) | self._speed())
                # Before the save, which notes the metrics by which the best is kept.
                metrics = self.evaluate(state, step, self._due_evals(step), final=last)
                tally = tally.after(step, metrics)
                last = last or tally.ends(patience)
                stopping = not last and stop.requested(step)
                # What is to be kept as the best must be saved where it was measured.
                ranked = self.cfg.checkpoint.keep_best and self.cfg.checkpoint.metric in metrics
                if last or stopping or ranked or _due(step, plan.checkpoint_every):
                    self._save(step, state, metrics, tally, must_succeed=last or stopping)
                if stopping:
                    break
        self.checkpoints.wait()
        return state, step, metrics, tally

    def finish(self, state: TrainState, done: Mapping[str, float]) -> dict[str, float]:
        """Run the evaluations of the final state that are not `done` yet."""
        rest = [name for name in self.cfg.evals if f"{name}/loss" not in done]
        return self.evaluate(state, self.parts.plan.total_steps, rest, final=True)

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
                state, step, list(self.cfg.evals), final=True, written=self._due_evals(step)
            )
        raise CorruptCheckpoints(
            f"{self.place} should end with the best parameters by {tally.metric}, but no intact "
            "checkpoint has it; set checkpoint.patience=0 to go on"
        )

    def _due_evals(self, step: int) -> list[str]:
        """Name the evaluations that training itself runs after a step."""
        plan = self.parts.plan
        last = step == plan.total_steps
        return [n for n, every in plan.eval_every.items() if _due(step, every) or (last and every)]

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
        for name in names:
            run, predict = self.evaluators[name].run, self.parts.predict
            report_dir = self.place / name if final and self.cfg.evals[name].report else None
            with self.progress.paused(f"evaluating {name}"):
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

    def _save(
        self,
        step: int,
        state: TrainState,
        metrics: Mapping[str, float],
        tally: Tally,
        *,
        must_succeed: bool,
    ) -> None:
        """Start a save; one that fails midway (a full disk) is told and tried again next time."""
        try:
            metadata = self.metadata | early_stop.to_json(tally)
            self.checkpoints.save(step, state, metadata=metadata, metrics=metrics)
        except SaveFailed as error:
            self.progress.message(f"warning: {error}")
            if must_succeed:
                # The failure may be of the save before, and this one under way.
                self.checkpoints.wait()
                if step not in self.checkpoints.steps():
                    raise

    def _log(self, step: int, scalars: Mapping[str, float]) -> None:
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


def _images_at_peak(cfg: Config, parts: build_lib.Parts, mesh: Mesh) -> float | None:
    """Return the images per second at which MFU is 1; None where the devices' peak is unknown."""
    peak = peak_flops(mesh.devices.flat[0].device_kind, cfg.model.dtype.value)
    if peak is None:
        return None
    return peak * mesh.size / build_lib.image_flops(cfg, parts)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
