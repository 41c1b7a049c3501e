# SPDX-License-Identifier: Apache-2.0
"""`main.py --dry_run`: what a run would be, by shapes alone; no array is made, no file written."""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import jax

from vit_jax import config as config_lib
from vit_jax import data, models, optim, trees
from vit_jax.config.tree import Config
from vit_jax.cost import flops, tables
from vit_jax.data.sources import look
from vit_jax.data.sources.records import data_root
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.models import patch_sizes
from vit_jax.objectives import create
from vit_jax.train import begin
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import abstract_batch, estimate_memory, loss_share, step_flops

_LARGE = 2**20  # bytes of a parameter


def dry_run(cfg: Config) -> tuple[str, UserError | None]:
    """Return the report, and what keeps the run from starting here or None.

    That is a missing prepared dataset, or weights to start from or of a teacher: missing, or none
    that fit; or a kernel of attention that this machine does not have. A mesh whose sizes are all
    given is planned for that many devices, though they are not here.

    Raises UserError: settings that do not go together, or images of one's own that are not there.
    """
    unfit = None
    try:
        config_lib.check_kernel(cfg)
    except UserError as error:
        unfit = UserError(f"{error} (the report is of XLA's attention)")
    try:
        if cfg.init.weights or cfg.optim.branch:
            begin.check_weights(cfg)
        create(cfg.objective, cfg.model, cfg.data).check_extras()
    except UserError as error:
        unfit = error  # shapes and costs do not need the weights
    with tempfile.TemporaryDirectory() as scratch:
        report, missing = _report(without_writing(cfg, scratch))
    return report, unfit or missing


def without_writing(cfg: Config, scratch: str) -> Config:
    """Point to `scratch` where opening the digits would write them first."""
    if cfg.data.name != "digits" or Path(data_root(cfg.data.data_dir), "digits").is_dir():
        return cfg
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, data_dir=scratch))


@look.once()
def _report(cfg: Config) -> tuple[str, UserError | None]:
    missing = None
    try:
        source = build_lib.open_train(cfg)
        cfg = build_lib.fitted(cfg, source)
        build_lib.open_evals(cfg, source)
        num_examples = len(source)
    except UserError as error:
        if data.full_name(cfg.data.name).startswith(("folder:", "csv:")):
            raise  # images of one's own: the name is wrong; shards may be on another machine
        # Shapes and costs do not need the data; only durations in epochs do: take a long run.
        source, missing = None, error
        cfg = config_lib.guessed(cfg, 100_000, 1000)
        num_examples = 100_000 * cfg.data.batch_size
    sizes = (cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor)
    devices = jax.device_count() if -1 in sizes else math.prod(sizes)
    mesh = sharding.abstract_mesh(cfg.mesh, devices)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    parts = build_lib.build(cfg, num_examples)
    state = build_lib.abstract_state(parts, mesh)
    rows = optim.describe(cfg.optim, state.params, models.growth(cfg.model))
    columns = {name: {x.parameter: getattr(x, name) for x in rows} for name in ("decay", "lr")}
    lines = ["PARAMETERS", *tables.parameter_table(state.params, columns), ""]
    if frozen := trees.num_params(parts.params) - trees.num_params(state.params):
        lines[-1:] = [f"besides {frozen:,} frozen ones of {cfg.init.weights}", ""]
    lines += [f"COST ({devices} device(s), mesh {dict(mesh.shape)})"]
    lines += [_flops(cfg, parts, missing is None)]
    lines += tables.memory_table(estimate_memory(cfg, parts, mesh))
    lines += [*_undivided(state.params, mesh), *loss_share(cfg, parts, mesh.shape), ""]
    batch = abstract_batch(cfg, parts, source).items()
    arrays = [[name, str(list(x.shape)), str(x.dtype)] for name, x in batch]
    lines += ["BATCH", *tables.align(["array", "shape", "dtype"], arrays), ""]
    lines += ["RUN", *_durations(cfg, parts.plan, num_examples, missing is None)]
    lines += [f"starts from {cfg.init.weights}"] if cfg.init.weights else []
    lines += parts.objective.describe()
    return "\n".join(lines), missing


def _flops(cfg: Config, parts: build_lib.Parts, known: bool) -> str:
    height, width, channels = models.input_shape(cfg.model)
    draws = [patch_sizes.at(cfg.model, side) for side in patch_sizes.draws(cfg.model)]
    each = (models.create(models.looped(model)) for model in draws)
    forward = sum(flops.forward_flops(x, (height, width), channels) for x in each) // len(draws)
    step = step_flops(cfg, parts)
    own = parts.plan.total_steps - (optim.trunk(cfg.optim)[1] if cfg.optim.branch else 0)
    whole = f"; whole run: {tables.format_flops(step * own)}" if known else ""
    per_image, per_step = tables.format_flops(forward), tables.format_flops(step)
    mean = ", means over model.drawn_patches" if len(draws) > 1 else ""
    if parts.objective.pair is not None:
        variables: Any = {"params": parts.params, **parts.abstract.model_state}
        objective: Any = parts.objective
        per_text = tables.format_flops(objective.text_flops(variables))
        per_image = f"{per_image} per image, {per_text} per text"
    else:
        per_image = f"{per_image} per image"
    return f"forward: {per_image}; step: {per_step}{whole}{mean}"


def _undivided(params: Any, mesh: jax.sharding.AbstractMesh) -> list[str]:
    """Warn of large parameters that stay whole though the mesh has axes to divide them by."""
    sizes = [f"mesh.{x}={mesh.shape[x]}" for x in ("fsdp", "tensor") if mesh.shape[x] > 1]
    whole = [
        name
        for name, leaf in trees.named_leaves(params)
        if trees.num_bytes(leaf) >= _LARGE and leaf.sharding.shard_shape(leaf.shape) == leaf.shape
    ]
    if not sizes or not whole:
        return []
    what = f"{' and '.join(sizes)} divides no axis of {tables.first_of(whole)}"
    return [f"warning: {what}: whole on every device"]


def _durations(cfg: Config, plan: config_lib.Plan, num_examples: int, known: bool) -> list[str]:
    if not known:
        return [f"{cfg.duration} of {cfg.data.name}[{cfg.data.train_split}]"]
    evals = ", ".join(
        f"{name} every {every} steps" if every else f"{name} at the end"
        for name, every in plan.eval_every.items()
    )
    steps = f"{plan.total_steps:,} steps of {cfg.data.batch_size:,}"
    if cfg.optim.branch:
        steps += f", from step {optim.trunk(cfg.optim)[1]:,} of {cfg.optim.branch} on"
    return [
        f"{cfg.duration} of {num_examples:,} examples = {steps}",
        f"checkpoint every {plan.checkpoint_every:,} steps; evaluations: {evals or 'none'}",
    ]
