# SPDX-License-Identifier: Apache-2.0
"""`fit`: `open_run` checks, `first_position` restores or initialises, `train` runs the steps.

A batch is a function of the seed and the step, so that a step number is all that a resume needs of
the data (data/order.py); what is learned is the objective's (objectives/base.py).
"""

import contextlib
import dataclasses
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from vit_jax.config.tree import Config
from vit_jax.devices import hardware
from vit_jax.models import patch_sizes
from vit_jax.objectives import Batch
from vit_jax.process.preemption import INTERRUPTED, Preemption
from vit_jax.train import begin, branch
from vit_jax.train import build as build_lib
from vit_jax.train.batches import device_batches
from vit_jax.train.begin import Position, open_run, print_once
from vit_jax.train.ending import conclude, measure_start, measured
from vit_jax.train.health import watchdog
from vit_jax.train.report import profile
from vit_jax.train.report.goodput import Phase
from vit_jax.train.report.profile import Profiler, Window
from vit_jax.train.run import Run, due, services
from vit_jax.train.state import TrainState
from vit_jax.workdir import folder as workdir

if TYPE_CHECKING:
    from vit_jax.workdir.mirror import Mirror


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call of `fit` ended.

    Attributes:
        state: the last state, or the best one of a run that stopped early; None where the run had
            finished before.
        step: the number of steps done.
        status: exit status: 0 finished, 75 interrupted (the same command continues).
        metrics: of the evaluations at the last step; {} of a run interrupted between them.
    """

    state: TrainState | None = dataclasses.field(repr=False)
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
    """Train the run of `cfg` in a workdir: continue a run there, else a trunk, else start anew.

    A run that is killed at any moment and called again ends with the same parameters, bit for bit,
    as an uninterrupted one. The workdir keeps checkpoints, metrics, config, class names, and the
    profile of the steps in `window`.

    Raises UserError: anything wrong with config, data, workdir, checkpoints or window.
    """
    opened = open_run(cfg, directory)
    cfg, path, total = opened.cfg, opened.path, opened.parts.plan.total_steps
    profile.check(window, path, start=0, total=total)  # before anything is written
    with (
        hardware.explained(hardware.TRAINING),
        Preemption() as stop,
        workdir.lock(path, own=bool(opened.bucket)),
        _mirrored(opened.bucket, path, stop) as bucket,
        jax.set_mesh(opened.mesh),
    ):
        checkpoints = begin.open_checkpoints(opened)
        latest = checkpoints.latest_step()
        saved = branch.metadata(cfg) if latest is None else checkpoints.metadata(latest)
        changed = begin.check_unchanged(
            opened,
            saved,
            allow_config_change=allow_config_change,
            allow_data_change=allow_data_change,
        )
        said, step = begin.finished(opened, latest, saved)
        if said:
            print_once(said)
            return Result(None, step, 0, measured(opened, step, saved))
        extras = begin.open_extras(opened, saved, allow_config_change=allow_config_change)
        position = begin.first_position(opened, checkpoints)
        extras = begin.on_devices(opened, extras)
        metadata = begin.record(opened, extras)
        window = profile.check(window, path, start=position.step, total=total)
        if stop.signal is not None:  # of one process; several agree on a stop in the loop
            print_once(f"{stop} before it took a step: nothing to save; the same command continues")
            return Result(position.state, position.step, INTERRUPTED, {})
        watch = watchdog.watch(opened.goodput, cfg.faults.hang_seconds)
        with watch, services(opened, position, checkpoints, extras, metadata, bucket) as run:
            if changed:
                run.writer.write(position.step, changed)
            stream = device_batches(
                cfg.data,
                opened.parts.objective,
                opened.source,
                opened.mesh,
                seed=cfg.seed,
                start=position.step,
                rows=extras.rows,
                unreadable=run.unreadable,
            )
            opened.goodput.switch(Phase.OTHER)  # from here the watchdog counts
            measure_start(run, position)
            end = train(run, position, stream, stop, window)
            end, finished = conclude(run, end, stop)
        # After the log is closed: of a finished run everything is on the disk.
        if finished and jax.process_index() == 0:
            workdir.mark_finished(path, end.step)
        return Result(end.state, end.step, 0 if finished else INTERRUPTED, end.metrics)


def _mirrored(
    bucket: str, path: Path, stop: Preemption
) -> contextlib.AbstractContextManager["Mirror | None"]:
    """Copy the run to its bucket, if it has one."""
    if not bucket:
        return contextlib.nullcontext()
    from vit_jax.workdir.mirror import mirrored  # late: most workdirs are local

    return mirrored(bucket, path, stop)


def train(
    run: Run,
    position: Position,
    stream: Generator[Batch, None, None],
    stop: Preemption,
    window: Window | None,
) -> Position:
    """Run from a position to the end, planned or early, or to a request to stop."""
    cfg, plan, goodput, buffer = run.cfg, run.plan, run.goodput, run.buffer
    patience, mesh = cfg.checkpoint.patience, run.opened.mesh
    state, step, tally, metrics = position.state, position.step, position.tally, position.metrics
    steps, traced = build_lib.compile_steps(run.opened.parts, mesh), set[object]()
    profiler = Profiler(window, run.opened.path, wait=buffer.wait, log=run.progress.message)
    with contextlib.closing(stream) as batches, contextlib.closing(profiler), run.keeping_saves():
        while step < plan.total_steps and not tally.ends(patience):
            with profiler.step(step + 1):
                with goodput.spent(Phase.DATA):
                    batch = next(batches)
                which = patch_sizes.drawn(cfg.model, cfg.seed, step)
                program = which, *(x.shape for x in batch.values())  # native images have several
                # The first call of each traces and compiles before it returns; no other does.
                with goodput.spent(Phase.STEP if program in traced else Phase.COMPILE):
                    state, values = steps[which](state, run.frozen, batch)
                traced.add(program)
                step += 1
                # Waits for step - 2, so that the host runs no further ahead; raises NonFinite.
                with goodput.spent(Phase.STEP):
                    buffer.add(step, values)
            run.progress.advance(step)
            complete = step == plan.total_steps
            if complete or due(step, plan.log_every):
                run.log(step, everything=complete)
            # Before the save, which stores the metrics that rank checkpoints.
            with run.saved_first(Position(state, step, {}, tally, position.saved)):
                of = f"step {step:,}, the last" if complete else ""
                metrics = run.evaluate(state, run.due_evals(step), report=of)
                run.log_evals(step, metrics)
            tally = tally.after(step, metrics)
            ending = complete or tally.ends(patience)
            # All processes ask at the same step: the answer is one for all.
            stopping = not ending and stop.requested(step)
            # Save where the metric that ranks checkpoints was just measured.
            ranked = cfg.checkpoint.keep_best and cfg.checkpoint.metric in metrics
            position = Position(state, step, metrics, tally, position.saved)
            if ending or stopping or ranked or due(step, plan.checkpoint_every):
                run.save(position, must_succeed=ending or stopping)
            if stopping:
                break
    run.wait_for_save()
    return position
