# SPDX-License-Identifier: Apache-2.0
"""What a step of a run will cost: memory, traffic and time, by shapes."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import data, models, trees
from vit_jax.config.tree import Config
from vit_jax.cost import flops, memory, scale, tables
from vit_jax.data.sources.captions import token_spec
from vit_jax.objectives import Context
from vit_jax.train import build as build_lib


def step_flops(cfg: Config, parts: build_lib.Parts) -> int:
    """Count the FLOPs of one training step by shapes."""
    return build_lib.example_flops(parts) * cfg.data.batch_size


def repeated(cfg: Config) -> float:
    """Return a step's FLOPs over the model's own: blocks may compute their forward pass again."""
    return 4 / 3 if cfg.model.remat is models.Remat.FULL else 1.0


def abstract_batch(
    cfg: Config, parts: build_lib.Parts, source: data.Source | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype of a global batch on the devices; labels are ids without a source."""
    size, objective = cfg.data.batch_size, parts.objective
    tokens = {} if objective.pair is None else token_spec(objective.pair.text.context)
    numbers = jax.ShapeDtypeStruct((cfg.model.num_classes,), jnp.float32)
    of_none = {"label": jax.ShapeDtypeStruct((), jnp.int32), "value": numbers, **tokens}
    spec = of_none if source is None else source.spec
    if objective.cfg.pixel_target:
        from vit_jax.data import targets  # late: few runs learn from pixels

        (view,) = objective.views.values()
        made = targets.shapes(view.size, cfg.data.max_segments)
        spec = {**spec, **{key: jax.ShapeDtypeStruct(*each) for key, each in made.items()}}
    if data.is_native(cfg.data.transform):
        fields = {name: spec[name] for name in objective.fields}
        from vit_jax.data.stream.native import batch_shapes  # late: most runs have one size

        shapes = batch_shapes(cfg.data, objective.views, fields)
        return {name: jax.ShapeDtypeStruct(*each) for name, each in shapes.items()}
    of_one = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in objective.views.items()}
    of_one |= {name: spec[name] for name in objective.fields}
    of_one |= objective.rows
    return {name: jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for name, x in of_one.items()}


def estimate_memory(
    cfg: Config, parts: build_lib.Parts, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> memory.Memory:
    """Estimate the bytes of a run's step on a mesh that is here or not."""
    batch, objective = abstract_batch(cfg, parts), parts.programs[0].objective

    def loss(params: Any, frozen: Any, kept: Any, batch: Any, rng: jax.Array) -> Any:
        model_state, ema, own = kept
        held = {"model_state": model_state, "ema": ema, "objective": own}
        ctx = Context(frozen=frozen, step=jnp.int32(0), **held)
        return objective.loss(params, ctx, batch, rng)

    return memory.estimate(
        build_lib.abstract_state(parts, mesh),
        loss,
        # The key inside: made outside, it would be computed.
        jax.eval_shape(lambda x: objective.prepare(x, jax.random.key(0)), batch),
        frozen=build_lib.placed(parts.frozen, mesh),
        axis_sizes=dict(mesh.shape),
        num_microbatches=cfg.accum_steps,
        uphill=cfg.optim.sam_rho > 0,
        **_itemsizes(cfg),
    )


def _itemsizes(cfg: Config) -> dict[str, int]:
    """Return the bytes of what the model computes with, and gradients are summed in: no fewer."""
    sizes = [jnp.dtype(x.value).itemsize for x in (cfg.model.dtype, cfg.reduce_dtype)]
    return {"compute_bytes": sizes[0], "reduce_bytes": max(sizes)}


def estimate_traffic(
    cfg: Config, parts: build_lib.Parts, axis_sizes: Mapping[str, int]
) -> scale.Traffic:
    """Count the bytes that a run's step moves between the devices of a mesh of such sizes."""
    sizes = _itemsizes(cfg)
    values, sums = _tensor_sums(cfg, parts)
    shards = axis_sizes["data"] * axis_sizes["fsdp"]
    images = cfg.data.batch_size / (shards * cfg.accum_steps)
    sent = {"activation": images * values * sizes["compute_bytes"], "num_sums": sums}
    moved = scale.traffic(parts.abstract.params, axis_sizes, **sizes, **sent)
    passed = float(parts.objective.passed_bytes(cfg.data.batch_size, shards))
    texts = images * sizes["compute_bytes"] * _text_sums(cfg, parts)
    if axis_sizes["tensor"] == 1:
        texts = 0.0
    moved = dataclasses.replace(moved, passed=passed, tensor=moved.tensor + texts)
    # Every micro-batch gathers the weights and sums its own gradient; SAM has two gradients.
    times = cfg.accum_steps * (2 if cfg.optim.sam_rho > 0 else 1)
    return scale.Traffic(**{kind: x * times for kind, x in dataclasses.asdict(moved).items()})


def estimate_step(
    cfg: Config, parts: build_lib.Parts, axis_sizes: Mapping[str, int], chip: scale.Chip
) -> scale.StepTime:
    """Predict the time of a run's step on chips that are here or not, as a range."""
    effort = estimate_effort(cfg, parts, axis_sizes)
    return scale.predict(effort, estimate_traffic(cfg, parts, axis_sizes), axis_sizes, chip)


def estimate_effort(
    cfg: Config, parts: build_lib.Parts, axis_sizes: Mapping[str, int]
) -> scale.Effort:
    """Count what a run's step asks of one device of a mesh of such sizes."""
    count = repeated(cfg) * step_flops(cfg, parts)
    devices = math.prod(axis_sizes.values())
    work, weights = image_work(parts)
    updated = trees.num_params(parts.abstract.params)
    return scale.effort(
        work,
        count / devices,
        images=cfg.data.batch_size / devices,
        weights=weights / axis_sizes["tensor"],
        updated=updated / (axis_sizes["fsdp"] * axis_sizes["tensor"]),
        pieces=cfg.accum_steps,
        dtype=cfg.model.dtype.value,
    )


def image_work(parts: build_lib.Parts) -> tuple[flops.Work, int]:
    """Count the model's forward pass of one image, and its parameters without other towers'."""
    objective = parts.programs[0].objective
    image = jax.ShapeDtypeStruct((1, *models.input_shape(objective.model)), "float32")
    variables = {"params": parts.params, **parts.abstract.model_state}
    model = models.looped(objective.model)
    module = models.create(model)
    weights = trees.num_params(models.abstract(model)["params"])
    return flops.work(lambda v, x: module.apply(v, x, train=False), variables, image), weights


def loss_share(cfg: Config, parts: build_lib.Parts, axis_sizes: Mapping[str, int]) -> list[str]:
    """Return a line about what a contrastive loss passes on; none where nothing is."""
    moved = estimate_traffic(cfg, parts, axis_sizes)
    if not moved.passed:
        return []
    # A sum over devices sends what it works on twice.
    others = moved.gather + moved.scatter + 2 * (moved.reduce + moved.reduce_copies + moved.tensor)
    share, size = moved.passed / (moved.passed + others), tables.format_bytes(int(moved.passed))
    return [f"the loss passes {size} of texts from device to device, {share:.0%} of the traffic"]


def _text_sums(cfg: Config, parts: build_lib.Parts) -> int:
    """Return the values that the text tower sums over the tensor axis, of one text."""
    pair = parts.objective.pair
    if pair is None:
        return 0
    recomputed = cfg.model.remat is models.Remat.FULL
    sums = scale.tensor_sums(pair.text.depth, recomputed=recomputed)
    return pair.text.context * pair.text.dim * sums


def _tensor_sums(cfg: Config, parts: build_lib.Parts) -> tuple[int, int]:
    """Return the values in a last block's output of one image, and the sums of as many."""
    image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg.model)), "float32")
    variables = {"params": parts.params, **parts.abstract.model_state}
    module = models.create(models.looped(parts.programs[0].objective.model))
    tokens = jax.eval_shape(lambda v, x: module.apply(v, x, train=False), variables, image).tokens
    if tokens is None:  # convolutions, which no tensor axis cuts
        return 0, 0
    # Each stage of a Swin has half of the values of the one before.
    model: Any = cfg.model
    depths = (model.depth,) if hasattr(model, "depth") else model.depths
    blocks = sum(depth * 2**after for after, depth in enumerate(reversed(depths)))
    recomputed = cfg.model.remat is models.Remat.FULL
    return tokens.size, scale.tensor_sums(blocks, recomputed=recomputed)
