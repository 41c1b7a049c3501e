# SPDX-License-Identifier: Apache-2.0
"""What is measured before a run's first step and after its last, and how the run ends.

After the last step: the evaluations that are left, reports and curve, the best step restored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import trees
from vit_jax.checkpoints.checkpointer import CorruptCheckpoints
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals import FeaturesEval, ProbeEval
from vit_jax.figures.plots import learning_curve
from vit_jax.process import waiting
from vit_jax.process.preemption import Preemption
from vit_jax.train import build as build_lib
from vit_jax.train import early_stop
from vit_jax.train.begin import Opened, Position
from vit_jax.train.report.goodput import Phase
from vit_jax.train.report.writers import read_jsonl
from vit_jax.train.run import Run
from vit_jax.workdir import folder as workdir


def measure_start(run: Run, at: Position) -> None:
    """Measure the features of the start, if a `FeaturesEval` compares later ones with them.

    A new run is measured by its periodic probes too, and that is logged as step 0. Where a run is
    continued, the features of its start are read from its workdir.
    """
    found = [name for name, each in run.cfg.evals.items() if isinstance(each, FeaturesEval)]
    if at.state is None or not found:
        return
    from vit_jax.evals.drift import FILE, Drift  # late: most runs compare no features

    fresh = at.step == 0
    variables = run.whole({"params": at.state.params, **at.state.model_state})
    for name in found:
        each, file = run.opened.evaluators[name], run.opened.path / name / FILE
        assert isinstance(each, Drift)
        each.begin(run.predictors(name), variables, file, fresh=fresh)
    if fresh:
        evals = run.cfg.evals.items()
        probes = [name for name, each in evals if isinstance(each, ProbeEval) and each.every]
        run.log_evals(0, run.evaluate(at.state, [*found, *probes], report=""))


def conclude(run: Run, at: Position, stop: Preemption) -> tuple[Position, bool]:
    """Run the evaluations that are left and draw the curve, unless interrupted.

    Returns:
        The final position, with the best parameters after an early stop, and whether the run
        is finished.
    """
    if at.tally.ends(run.cfg.checkpoint.patience):
        at = _restore_best(run, at)
    elif at.step < run.plan.total_steps or stop.signal is not None:
        # A signal in the last step too: the next call runs the final evaluations.
        _log_time(run, at.step)
        run.progress.message(f"{stop}: saved step {at.step:,}; the same command continues")
        return at, False
    else:
        with run.saved_first(at):
            at = dataclasses.replace(at, metrics=at.metrics | _evaluate_rest(run, at))
            _report_best(run, at)
    if jax.process_index() == 0:
        path = run.opened.path
        curve = path / workdir.CURVE
        rows = read_jsonl(path / workdir.METRICS)
        keeping = run.cfg.checkpoint
        kept = run.checkpoints.best_step() if keeping.keep_best else None
        learning_curve(rows, curve, path.name, kept=kept, metric=keeping.metric)
        run.progress.message(f"learning curve: {curve}")
    _log_time(run, at.step)
    return at, True


def _evaluate_rest(run: Run, at: Position) -> dict[str, float]:
    """Run the evaluations of the final state that were not due in the loop."""
    done = {name.partition("/")[0] for name in at.metrics}
    rest = [name for name in run.cfg.evals if name not in done]
    found = run.evaluate(at.state, rest, report=f"step {at.step:,}, the last")
    run.log_evals(at.step, found)
    keeping, path = run.cfg.checkpoint, run.opened.path
    best = run.checkpoints.best_step() if keeping.keep_best else None
    if best is not None and best != at.step:
        run.progress.message(
            f"the metrics above are of step {at.step:,}, the last; {path} as weights is step "
            f"{best:,}, the best by {keeping.metric}, and {path}@latest this one"
        )
    return found


def _report_best(run: Run, at: Position) -> None:
    """Write the reports again where the run as weights is an earlier step than the last."""
    names = [name for name, each in run.cfg.evals.items() if getattr(each, "report", False)]
    best = run.checkpoints.best_step() if run.cfg.checkpoint.keep_best else None
    if best in (None, at.step) or not names:
        return
    assert best is not None
    what = f"reporting on step {best:,}"
    with run.goodput.spent(Phase.EVAL), run.progress.paused(what), waiting.said(what, 30):
        try:
            if run.bucket is not None:
                run.bucket.complete(best)
            variables = run.whole(_read(run, best))
        except UserError as damage:
            run.progress.message(f"warning: {damage}; reports are of step {at.step:,}")
            return
        for name in names:
            evaluator, folder = run.opened.evaluators[name], run.opened.path / name
            evaluator.run(run.predictors(name), variables, folder, _named(run, best))
    listed = ", ".join(f"{name}/" for name in names)
    run.progress.message(f"tables and pictures of classes ({listed}) are of step {best:,} too")


def _named(run: Run, best: int) -> str:
    return f"step {best:,}, best by {run.cfg.checkpoint.metric}"


def _read(run: Run, step: int) -> dict[str, Any]:
    """Read the variables of a checkpoint with which the run computes as weights."""
    from vit_jax.checkpoints import reader  # late: it reads runs in buckets, too

    saved = reader.find(run.opened.path, str(step))
    inside = "ema/" if run.average_ranks else ("params/", "model_state/")
    names = [name for name in saved.manifest.leaves if name.startswith(inside)]
    found = trees.nest(reader.load(saved, names))
    state = build_lib.abstract_state(run.opened.parts, run.opened.mesh)
    if run.average_ranks:
        return sharding.place(found["ema"], state.ema)
    params = sharding.place(found["params"], state.params)
    return {
        "params": params,
        **sharding.place(found.get("model_state", {}), state.model_state),
    }


def _restore_best(run: Run, at: Position) -> Position:
    """Restore the best checkpoint of a run that stops early, and run every evaluation."""
    opened = run.opened
    # Free the memory before restoring the best checkpoint.
    jax.tree.map(lambda leaf: leaf.delete(), at.state)
    abstract = build_lib.abstract_state(opened.parts, opened.mesh)
    while (best := run.checkpoints.best_step()) is not None:
        try:
            if run.bucket is not None:
                run.bucket.complete(best)
            state = run.checkpoints.restore_step(abstract, best).state
        except CorruptCheckpoints as damage:
            run.progress.message(f"warning: {damage}")
            continue
        run.progress.message(early_stop.describe(at.tally, at.step, best))
        metrics = run.evaluate(state, list(run.cfg.evals), report=_named(run, best))
        # The loop has logged these, of the state at the stop; the rest is logged of the best.
        run.log_evals(at.step, metrics, logged=run.due_evals(at.step))
        return dataclasses.replace(at, state=state, metrics=metrics)
    why = f"no intact checkpoint has the best parameters by {at.tally.metric}"
    raise CorruptCheckpoints(f"{opened.path}: {why}; set checkpoint.patience=0 to go on")


def _log_time(run: Run, step: int) -> None:
    """Log the wall time by phase: the last line that this call of `fit` logs."""
    times = run.goodput.scalars()
    del times["perf/data_wait"]  # already in the last step's row
    run.writer.write(step, times)
    run.progress.message(str(run.goodput))


def measured(opened: Opened, step: int, saved: Mapping[str, Any]) -> dict[str, float]:
    """Return what `conclude` measured at the end of a run that finished at `step`, from its log.

    `saved` is the metadata of its last checkpoint, which names the best step of an early stop.
    """
    names = {f"{name}{suffix}" for name in opened.cfg.evals for suffix in ("", "_ema")}
    early = step < opened.parts.plan.total_steps
    best = early_stop.resume(opened.cfg.checkpoint, saved).step if early else step
    rows = read_jsonl(opened.path / workdir.METRICS)
    return {
        name: value
        for at in (step, best)  # of both, the best step's
        for row in rows
        for name, value in row.items()
        if row["step"] == at and name.partition("/")[0] in names and value is not None
    }
