# SPDX-License-Identifier: Apache-2.0
"""How a run begins, a function for each thing that `fit` does before the first step."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import config as config_lib
from vit_jax import data, evals
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.checkpoints.config import directed, turned
from vit_jax.checkpoints.manifest import on_all_processes
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data.sources import look
from vit_jax.devices import hardware, hosts, sharding
from vit_jax.errors import UserError
from vit_jax.objectives import Extras
from vit_jax.process import startup, waiting, xla
from vit_jax.train import branch, data_identity, early_stop, metadata, texts
from vit_jax.train import build as build_lib
from vit_jax.train.early_stop import Tally
from vit_jax.train.health import peers
from vit_jax.train.report.goodput import Goodput
from vit_jax.train.state import TrainState
from vit_jax.workdir import folder as workdir


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run whose config and data are checked.

    Attributes:
        cfg: the run.
        path: its workdir, on this machine.
        bucket: the address where it is kept besides, "" for none.
        goodput: its wall time by phase.
        source: the training split.
        splits: size and digest of each split that it reads, from `data_identity.describe`.
        evaluators: by name.
        mesh: the devices.
        parts: the objective, the plan and the step that the config builds to.
    """

    cfg: Config
    path: Path
    bucket: str
    goodput: Goodput
    source: data.Source
    splits: Mapping[str, Any]
    evaluators: Mapping[str, evals.Evaluator]
    mesh: Mesh
    parts: build_lib.Parts


@dataclasses.dataclass(frozen=True)
class Position:
    """How far a run has come.

    Attributes:
        state: after `step` steps.
        step: the number of steps done.
        metrics: of the evaluations at this step; {} if there were none.
        tally: of early stopping.
        saved: the metadata of the checkpoint that this call continues; {} for none.
    """

    state: TrainState
    step: int
    metrics: dict[str, float]
    tally: Tally
    saved: Mapping[str, Any]


def check_weights(cfg: Config, class_names: Sequence[str] = ()) -> None:
    """Raise UserError if the weights, or the trunk, to start from are missing or do not fit.

    Without the `class_names` of the data, which are not open yet, a head of other classes passes.
    """
    branch.metadata(cfg)
    if cfg.init.weights:
        from vit_jax.train import initial_state  # late: most runs read no weights

        initial_state.check(cfg, class_names)


@look.once()
def open_run(cfg: Config, directory: str | Path) -> Opened:
    """Check the config, open the data and build everything by shapes; leaves the workdir alone.

    Raises UserError: anything wrong with the config, the data or the weights to start from.
    """
    startup.check_not_forked()
    goodput = Goodput()
    config_lib.check(cfg)
    print_once(xla.lend_threads(fixed=cfg.mesh.reproducible > 0))  # before any device is asked for
    cfg = dataclasses.replace(cfg, checkpoint=directed(cfg.checkpoint))
    startup.keep_programs()  # for a call from Python, as the next; main.py has done both
    waiting.say_compilations()
    path, url = workdir.resolve(directory)
    if url and (index := jax.process_index()):  # processes of one machine have a place each
        path = workdir.resolve(directory, index)[0]
    cfg, kept = config_json.continued(cfg, workdir.saved_config(path, url))
    if kept:
        began = "the run was begun before these fields, and goes on as it began"
        print_once(f"{path}: {', '.join(kept)} ({began})")
    cfg = texts.settled(cfg, path, url)
    fresh, known = not workdir.has_checkpoints(path, url), cfg.model.num_classes > 0
    if fresh and known:
        check_weights(cfg)
    source = build_lib.open_train(cfg)
    cfg = build_lib.fitted(cfg, source)
    if fresh:  # the head, by the names of its classes
        check_weights(cfg, source.class_names)
    if cfg.data.batch_size > len(source):
        many = f"data.batch_size={cfg.data.batch_size} exceeds the {len(source):,} images"
        print_once(f"warning: {many}: a step sees some of them twice")
    eval_sources = build_lib.open_evals(cfg, source)
    mesh = sharding.make_mesh(cfg.mesh)
    print_once(hardware.slow_dtype(cfg.model.dtype, "config.model.dtype", training=True))
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    config_lib.check_kernel(cfg)
    return Opened(
        cfg=cfg,
        path=path,
        bucket=url,
        goodput=goodput,
        source=source,
        splits=on_all_processes(lambda: data_identity.describe(source, eval_sources)),
        evaluators=build_lib.evaluators(cfg, eval_sources, source, mesh, goodput.tick),
        mesh=mesh,
        parts=build_lib.build(cfg, len(source)),
    )


def open_checkpoints(opened: Opened) -> Checkpointer:
    """Open the checkpoints of the workdir, once all processes are found to run the same.

    Raises UserError: a process has another config, other data or another workdir.
    """
    facts = peers.facts(config_json.to_json(opened.cfg), opened.splits, opened.source.class_names)
    facts |= {"workdir": opened.bucket} if opened.bucket else {}
    peers.agree(facts, opened.path, shared=not opened.bucket)
    place, own = opened.path / workdir.CHECKPOINTS, bool(opened.bucket)
    return Checkpointer(place, opened.cfg.checkpoint, own=own)


def check_unchanged(
    opened: Opened,
    saved: Mapping[str, Any],
    *,
    allow_config_change: bool,
    allow_data_change: bool,
) -> dict[str, float]:
    """Compare the run with what it was `saved` as; returns the numbers of changes, as metrics.

    Raises UserError: the run was started with another config or other data, and may not change.
    """
    cfg, path = opened.cfg, opened.path
    changed = metadata.check_unchanged(
        cfg,
        saved,
        opened.source.class_names,
        opened.splits,
        path,
        allow_config_change=allow_config_change,
        allow_data_change=allow_data_change,
    )
    if told := turned(cfg.checkpoint, saved.get("config", {}).get("checkpoint", {})):
        print_once(f"{path}: {told}")
    return changed


def finished(opened: Opened, latest: int | None, saved: Mapping[str, Any]) -> tuple[str, int]:
    """Return why there is nothing to do and the number of steps done; else ("", 0).

    `latest` is the step of the newest checkpoint, `saved` its metadata. All processes call it.
    """
    tally = early_stop.resume(opened.cfg.checkpoint, saved)
    # By process 0: without a shared disk the others have no such file.
    finished_at = hosts.led(lambda: workdir.finished_step(opened.path))
    total = opened.parts.plan.total_steps
    if finished_at == total:
        return f"{opened.path} has finished its {total:,} steps; nothing to do", total
    if finished_at == latest is not None and tally.ends(opened.cfg.checkpoint.patience):
        why = f"{opened.path} stopped early at step {finished_at:,}; nothing to do"
        return f"{why} (a larger checkpoint.patience goes on)", finished_at
    return "", 0


def open_extras(opened: Opened, saved: Mapping[str, Any], *, allow_config_change: bool) -> Extras:
    """Read what the objective needs besides the data: a teacher, the weights that stay.

    Raises UserError: it does not fit, or is not what a run that is continued was started with.
    """
    cfg, total = opened.cfg, opened.parts.plan.total_steps
    objective = opened.parts.objective
    extras = objective.open(opened.source, cfg.seed, total * cfg.data.batch_size, saved)
    what = "tokenizers" if cfg.objective.embeds_texts else "weights of the teacher"
    peers.agree_on_weights(what, extras.digest)
    if saved and not allow_config_change:
        metadata.check_extras_unchanged(extras.digest, saved, opened.path, extras.field)
    if extras.base:
        peers.agree_on_weights("weights that are frozen", extras.base.digest)
    return extras


def first_position(opened: Opened, checkpoints: Checkpointer) -> Position:
    """Restore the newest intact checkpoint, or make the state of step 0.

    A damaged checkpoint is passed over: what the position has as `saved` is of the one restored.

    Raises UserError: no checkpoint is intact, or the weights to start from do not fit.
    """
    cfg, total = opened.cfg, opened.parts.plan.total_steps
    abstract = build_lib.abstract_state(opened.parts, opened.mesh)
    restored = checkpoints.restore(abstract) or branch.restored(cfg, abstract)
    if restored is None:
        state = _initial_state(opened)
        return Position(state, 0, {}, early_stop.resume(cfg.checkpoint, {}), {})
    if restored.step > total:
        raise UserError(
            f"{opened.path} is at step {restored.step:,}, beyond duration={cfg.duration!r} "
            f"({total:,} steps); choose a longer duration or another workdir"
        )
    print_once(f"continuing {opened.path} at step {restored.step:,} of {total:,}")
    print_once(metadata.other_devices(restored.metadata, opened.mesh, cfg.data.batch_size))
    tally = early_stop.resume(cfg.checkpoint, restored.metadata)
    return Position(restored.state, restored.step, {}, tally, restored.metadata)


def _initial_state(opened: Opened) -> TrainState:
    """Make the state of step 0, and say what it starts from where that is not random."""
    cfg, parts, mesh = opened.cfg, opened.parts, opened.mesh
    if not cfg.init.weights:
        return build_lib.init_state(cfg, parts, mesh)
    from vit_jax.train.initial_state import initial_state  # late, as in `check_weights`

    state, message = initial_state(cfg, parts, mesh, opened.source.class_names)
    print_once(message)
    return state


def on_devices(opened: Opened, extras: Extras) -> Extras:
    """Return the extras with what is frozen on the devices, and no longer on the host."""
    abstract = build_lib.placed(opened.parts.frozen, opened.mesh)
    return dataclasses.replace(extras, frozen=sharding.place(extras.frozen, abstract))


def record(opened: Opened, extras: Extras) -> dict[str, Any]:
    """Write down in the workdir what the run is; returns what each checkpoint is saved with."""
    cfg, objective = opened.cfg, opened.parts.objective
    described = metadata.describe(
        cfg,
        opened.source.class_names,
        opened.splits,
        extras.digest,
        own=objective.own_parameters,
        average=cfg.objective.needs_average,
        base=extras.base,
        mesh=opened.mesh,
    )
    metadata.write(opened.path, described)
    texts.keep(opened.source, opened.path)
    data_identity.write_splits(cfg.data.name, opened.source, opened.path)
    return described


def print_once(text: str) -> None:
    """Print a line, if any, on process 0 alone."""
    if text and jax.process_index() == 0:
        print(text, flush=True)
