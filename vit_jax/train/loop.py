# SPDX-License-Identifier: Apache-2.0
"""The training loop: short, and in the order in which things happen."""

import contextlib
import dataclasses
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import __version__, data, models, sharding
from vit_jax import config as config_lib
from vit_jax.analysis.flops import forward_flops, train_flops
from vit_jax.analysis.peaks import peak_flops
from vit_jax.checkpoints.checkpointer import Checkpointer, SaveFailed
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.evals import Classify
from vit_jax.train import build as build_lib
from vit_jax.train import report, workdir
from vit_jax.train import start as start_lib
from vit_jax.train.meter import Meter
from vit_jax.train.progress import Progress
from vit_jax.train.state import TrainState
from vit_jax.train.stop import Stop
from vit_jax.train.writers import MetricWriter, make_writer

# Exit status of a run that was told to stop and can go on (EX_TEMPFAIL of sysexits.h).
INTERRUPTED = 75


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call of `fit` ended.

    Attributes:
        state: the last state; None where the run had finished before.
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
        if latest is not None and not allow_config_change:
            _check_unchanged(cfg, checkpoints.metadata(latest)["config"], place)
        if workdir.finished_step(place) == total:
            _say(f"{place} has finished its {total:,} steps; nothing to do")
            return Result(None, total, 0, {})
        restored = checkpoints.restore(build_lib.abstract_state(parts, mesh))
        if restored is not None:
            state, start = restored.state, restored.step
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
        metadata = _metadata(cfg, source)
        _write_metadata(place, metadata)
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
                evaluators=evaluators,
                checkpoints=checkpoints,
                writer=writer,
                progress=progress,
                metadata=metadata,
                place=place,
                images_at_peak=_images_at_peak(cfg, parts, mesh),
            )
            state, step, metrics = run.train(state, start, source, stop)
            if step < total:
                progress.message(f"{stop}: saved step {step:,}; the same command continues")
                return Result(state, step, INTERRUPTED, metrics)
            metrics |= run.finish(state, metrics)
        if jax.process_index() == 0:
            report.learning_curve(place / workdir.METRICS, place / workdir.CURVE, title=place.name)
            _say(f"learning curve: {place / workdir.CURVE}")
            workdir.mark_finished(place, total)
        return Result(state, total, 0, metrics)


@dataclasses.dataclass(frozen=True)
class _Run:
    """What one call of `fit` works with; each method is one stage of the loop."""

    cfg: Config
    parts: build_lib.Parts
    mesh: Mesh
    evaluators: Mapping[str, Classify]
    checkpoints: Checkpointer
    writer: MetricWriter
    progress: Progress
    metadata: dict[str, Any]
    place: Path
    images_at_peak: float | None

    def train(
        self, state: TrainState, start: int, source: data.Source, stop: Stop
    ) -> tuple[TrainState, int, dict[str, float]]:
        """Run from `start` to the end or to a request to stop; returns state, step and metrics."""
        plan, step, metrics = self.parts.plan, start, {}
        train_step = build_lib.compile_step(self.parts, self.mesh)
        meter = Meter()
        with contextlib.closing(_device_batches(self.cfg, source, self.mesh, start)) as batches:
            while step < plan.total_steps:
                with meter.waiting():
                    batch = next(batches)
                state, values = train_step(state, {}, batch)
                step += 1
                meter.add(step, values)
                self.progress.advance(step)
                last = step == plan.total_steps
                if last or _due(step, plan.log_every):
                    self._log(step, meter.read(everything=last) | self._speed())
                # Before the save, which notes the metrics by which the best is kept.
                due = [n for n, e in plan.eval_every.items() if _due(step, e) or (last and e)]
                metrics = self.evaluate(state, step, due)
                stopping = not last and stop.requested(step)
                # What is to be kept as the best must be saved where it was measured.
                ranked = self.cfg.checkpoint.keep_best and self.cfg.checkpoint.metric in metrics
                if last or stopping or ranked or _due(step, plan.checkpoint_every):
                    self._save(step, state, metrics, must_succeed=last or stopping)
                if stopping:
                    break
        self.checkpoints.wait()
        return state, step, metrics

    def finish(self, state: TrainState, done: Mapping[str, float]) -> dict[str, float]:
        """Run the evaluations of the final state that are not `done` yet."""
        rest = [name for name in self.cfg.evals if f"{name}/loss" not in done]
        return self.evaluate(state, self.parts.plan.total_steps, rest)

    def evaluate(self, state: TrainState, step: int, names: Sequence[str]) -> dict[str, float]:
        """Run evaluations by name, of parameters and moving average; the last step's report."""
        last = step == self.parts.plan.total_steps
        metrics: dict[str, float] = {}
        for name in names:
            run, predict = self.evaluators[name].run, self.parts.predict
            report_dir = self.place / name if last and self.cfg.evals[name].report else None
            with self.progress.paused(f"evaluating {name}"):
                scores = run(predict, {"params": state.params, **state.model_state}, report_dir)
                metrics |= {f"{name}/{key}": value for key, value in scores.items()}
                if state.ema is not None:
                    scores = run(predict, state.ema)
                    metrics |= {f"{name}_ema/{key}": value for key, value in scores.items()}
        if metrics:
            self._log(step, metrics)
        return metrics

    def _save(
        self, step: int, state: TrainState, metrics: Mapping[str, float], *, must_succeed: bool
    ) -> None:
        """Start a save; one that fails midway (a full disk) is told and tried again next time."""
        try:
            self.checkpoints.save(step, state, metadata=self.metadata, metrics=metrics)
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
    height, width, channels = models.input_shape(cfg.model)
    flops = train_flops(forward_flops(parts.module, (height, width), channels))
    return peak * mesh.size / flops


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _device_batches(
    cfg: Config, source: data.Source, mesh: Mesh, start: int
) -> Generator[dict[str, jax.Array], None, None]:
    """Yield global batches from step `start` on, one transfer ahead of the step that uses it."""
    height, width, channels = models.input_shape(cfg.model)
    index, count = sharding.batch_slice(mesh)
    batches = data.train_batches(
        source,
        cfg.data,
        image_size=(height, width),
        channels=channels,
        seed=cfg.seed,
        start_step=start,
        process_index=index,
        process_count=count,
    )
    with contextlib.closing(batches):
        ahead = None
        for batch in batches:
            arrays = {key: batch[key] for key in ("image", "label")}
            following = sharding.global_batch(arrays, mesh, batch_size=cfg.data.batch_size)
            if ahead is not None:
                yield ahead
            ahead = following


def _metadata(cfg: Config, source: data.Source) -> dict[str, Any]:
    """Return what a checkpoint says about itself, besides its arrays."""
    return {
        "config": config_lib.to_json(cfg),
        "class_names": list(source.class_names),
        "versions": {"vit_jax": __version__, "jax": jax.__version__},
    }


def _write_metadata(place: Path, metadata: Mapping[str, Any]) -> None:
    if jax.process_index() != 0:
        return
    (place / workdir.CONFIG).write_text(json.dumps(metadata["config"], indent=2) + "\n")
    (place / workdir.CLASSES).write_text(json.dumps(metadata["class_names"], indent=1) + "\n")


def _check_unchanged(cfg: Config, saved: Mapping[str, Any], place: Path) -> None:
    """Refuse to continue a run under a config that computes something else."""
    lines = config_lib.changes(saved, config_lib.to_json(cfg))
    if lines:
        more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
        raise UserError(
            f"{place} was started with another config ({'; '.join(lines[:4])}{more}); choose "
            "another workdir, or add --allow_config_change to continue from its checkpoint anyway"
        )


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
