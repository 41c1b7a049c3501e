# SPDX-License-Identifier: Apache-2.0
"""The training loop: short, and in the order in which things happen."""

import contextlib
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import config as config_lib
from vit_jax import config_json, sharding, startup
from vit_jax.analysis.peaks import peak_flops
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.checkpoints.record import on_all_processes
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.objectives import Batch
from vit_jax.train import broken as broken_lib
from vit_jax.train import build as build_lib
from vit_jax.train import early_stop, hang, identity, peers, profile, spikes, workdir
from vit_jax.train import metadata as metadata_lib
from vit_jax.train import meter as meter_lib
from vit_jax.train import start as start_lib
from vit_jax.train import teacher as teacher_lib
from vit_jax.train.batches import device_batches
from vit_jax.train.clock import Clock, Stage
from vit_jax.train.early_stop import Tally
from vit_jax.train.profile import Profiler, Window
from vit_jax.train.progress import Progress
from vit_jax.train.stages import Stages, due
from vit_jax.train.state import TrainState
from vit_jax.train.stop import INTERRUPTED, Stop
from vit_jax.train.stragglers import Stragglers
from vit_jax.train.writers import make_writer, read_jsonl
from vit_jax.visual.curve import learning_curve


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


def fit(
    cfg: Config,
    directory: str | Path,
    *,
    allow_config_change: bool = False,
    allow_data_change: bool = False,
    window: Window | None = None,
) -> Result:
    """Train the run of `cfg` in a workdir: continue what is there, else start from `cfg.init`.

    Killed at any moment and called again, it ends with the same parameters, bit for bit, as if it
    had never been killed. Checkpoints, metrics, config and class names are kept in the workdir,
    and the profile of the steps in `window`.

    Raises:
        UserError: anything wrong with config, data, workdir, checkpoints or window.
    """
    clock = Clock()
    config_lib.check(cfg)
    startup.keep_programs()  # for a call from Python; main.py has done it
    place = Path(directory).expanduser().absolute()
    if cfg.init.weights and not workdir.has_checkpoints(place):
        start_lib.check(cfg)
    source = build_lib.open_train(cfg)
    eval_sources = build_lib.open_evals(cfg, source)
    mesh = sharding.make_mesh(cfg.mesh)
    config_lib.check_batch(cfg, sharding.batch_parts(mesh))
    config_lib.check_kernel(cfg)
    parts = build_lib.build(cfg, len(source))
    evaluators = {
        name: hang.ticking(build_lib.evaluator(cfg, name, split, mesh), clock)
        for name, split in eval_sources.items()
    }
    total = parts.plan.total_steps
    profile.check(window, place, start=0, total=total)
    with Stop() as stop, workdir.lock(place), jax.set_mesh(mesh):
        splits = on_all_processes(lambda: identity.describe(source, eval_sources))
        facts = peers.facts(config_json.to_json(cfg), splits, source.class_names)
        peers.agree(facts, place)
        checkpoints = Checkpointer(place / workdir.CHECKPOINTS, cfg.checkpoint)
        latest = checkpoints.latest_step()
        saved = {} if latest is None else checkpoints.metadata(latest)
        changed = start_lib.check_unchanged(
            cfg,
            saved,
            source.class_names,
            splits,
            place,
            allow_config_change=allow_config_change,
            allow_data_change=allow_data_change,
        )
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
        window = profile.check(window, place, start=latest or 0, total=total)
        teacher = teacher_lib.read(cfg, source, total * cfg.data.batch_size)
        peers.agree_on_weights("weights of the teacher", teacher.digest)
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
        metadata = metadata_lib.describe(cfg, source.class_names, splits, teacher)
        metadata_lib.write(place, metadata)
        if stop.signal is not None:
            _say(f"{stop} before it took a step: nothing to save; the same command continues")
            return Result(state, start, INTERRUPTED, {})
        with contextlib.ExitStack() as stack:
            stack.enter_context(hang.watch(clock, cfg.faults.hang_seconds))
            writer = make_writer(cfg.log, place, step=start, run_config=metadata["config"])
            stack.callback(writer.close)
            if changed:
                writer.write(start, changed)
            progress = Progress(total, cfg.data.batch_size, start_step=start)
            stack.enter_context(progress)
            note_spike = spikes.make_log(cfg, source, place, progress.message)
            known = restored.metadata if restored is not None else {}
            broken = broken_lib.Broken(
                cfg.data.max_broken,
                source.example_id,
                known=known.get(broken_lib.KEY, []),
                say=progress.message,
            )
            stages = Stages(
                cfg=cfg,
                parts=parts,
                mesh=mesh,
                evaluators=evaluators,
                checkpoints=checkpoints,
                meter=meter_lib.Meter(cfg.faults, note_spike, known=known.get(meter_lib.KEY)),
                broken=broken,
                clock=clock,
                stragglers=Stragglers(),
                writer=writer,
                progress=progress,
                metadata=metadata,
                place=place,
                images_at_peak=_images_at_peak(cfg, parts, mesh),
            )
            stream = device_batches(cfg, source, mesh, start, teacher.cache, broken)
            clock.switch(Stage.OTHER)
            state, step, metrics, tally = train(
                stages, state, start, frozen, stream, tally, stop, window
            )
            if tally.ends(cfg.checkpoint.patience):
                del state  # its memory is the best one's
                state, metrics = stages.finish_early(step, tally)
            elif step < total or stop.signal is not None:
                stages.tell_time(step)
                progress.message(f"{stop}: saved step {step:,}; the same command continues")
                return Result(state, step, INTERRUPTED, metrics)
            else:
                metrics |= stages.finish(state, metrics)
            if jax.process_index() == 0:
                rows = read_jsonl(place / workdir.METRICS)
                learning_curve(rows, place / workdir.CURVE, title=place.name)
                progress.message(f"learning curve: {place / workdir.CURVE}")
            stages.tell_time(step)
        if jax.process_index() == 0:
            workdir.mark_finished(place, step)
        return Result(state, step, 0, metrics)


def train(
    stages: Stages,
    state: TrainState,
    start: int,
    frozen: Any,
    stream: Generator[Batch, None, None],
    tally: Tally,
    stop: Stop,
    window: Window | None,
) -> tuple[TrainState, int, dict[str, float], Tally]:
    """Run from step `start` to the end, planned or early, or to a request to stop.

    Returns the last state, its step, its evaluations and the tally of early stopping.
    """
    cfg, plan, clock, meter = stages.cfg, stages.parts.plan, stages.clock, stages.meter
    step, metrics, patience = start, {}, cfg.checkpoint.patience
    train_step = build_lib.compile_step(stages.parts, stages.mesh)
    profiler = Profiler(window, stages.place, wait=meter.wait, say=stages.progress.message)
    with (
        contextlib.closing(stream) as batches,
        contextlib.closing(profiler),
        stages.keeping_saves(),
    ):
        while step < plan.total_steps and not tally.ends(patience):
            with profiler.step(step + 1):
                with clock.spent(Stage.DATA):
                    batch = next(batches)
                # The first call traces and compiles before it returns; no other does.
                with clock.spent(Stage.COMPILE if step == start else Stage.STEP):
                    state, values = train_step(state, frozen, batch)
                step += 1
                with clock.spent(Stage.STEP):
                    meter.add(step, values)
            stages.progress.advance(step)
            last = step == plan.total_steps
            if last or due(step, plan.log_every):
                stages.log(step, everything=last)
            # Before the save, which notes the metrics by which the best is kept.
            metrics = stages.evaluate(state, step, stages.due_evals(step), final=last)
            tally = tally.after(step, metrics)
            last = last or tally.ends(patience)
            stopping = not last and stop.requested(step)
            # What is to be kept as the best must be saved where it was measured.
            ranked = cfg.checkpoint.keep_best and cfg.checkpoint.metric in metrics
            if last or stopping or ranked or due(step, plan.checkpoint_every):
                stages.save(step, state, metrics, tally, must_succeed=last or stopping)
            if stopping:
                break
    stages.wait_for_save()
    return state, step, metrics, tally


def _images_at_peak(cfg: Config, parts: build_lib.Parts, mesh: Mesh) -> float | None:
    """Return the images per second at which MFU is 1; None where the devices' peak is unknown."""
    peak = peak_flops(mesh.devices.flat[0].device_kind, cfg.model.dtype.value)
    if peak is None:
        return None
    return peak * mesh.size / build_lib.image_flops(cfg, parts)


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
