# SPDX-License-Identifier: Apache-2.0
"""Self-distillation as a whole: its terms on real crops, its state, its cost, any mesh."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models, objectives
from vit_jax.cost.flops import count
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.objectives import Balance, Context, Dino, DinoConfig, HeadConfig, dino
from vit_jax.objectives.dino import sinkhorn, softmax_targets, updated_centre

HEAD = HeadConfig(prototypes=12, hidden_dim=16, bottleneck_dim=8)


def _objective(dropout_rate: float = 0.0, **fields: Any) -> Dino:
    model = models.variant(
        "vit_mu8",
        num_classes=0,
        image_size=(16, 16),
        patch=(4, 4),
        dim=16,
        num_heads=2,
        dynamic_image_size=True,
        dropout_rate=dropout_rate,
    )
    large = TransformConfig(crop=Crop.RANDOM_RESIZED)
    sizes = {"small_crops": 2, "small_size": (8, 8), "head": HEAD, "patch_head": HEAD}
    found = objectives.create(DinoConfig(**{**sizes, **fields}), model, DataConfig(transform=large))
    assert isinstance(found, Dino)
    return found


def _batch(objective: Dino, size: int = 8) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        name: jnp.asarray(rng.integers(0, 256, (size, *view.shape), np.uint8))
        for name, view in objective.views.items()
    }


def _started(objective: Dino) -> tuple[Any, Context]:
    init = jax.jit(objective.init)  # op by op, each is a program
    params, _ = init(jax.random.key(0))
    other, _ = init(jax.random.key(1))
    state = jax.tree.map(lambda x: x + 0.1, objective.init_state(jax.random.key(0)))
    return params, Context(
        frozen={}, model_state={}, ema={"params": other}, objective=state, step=jnp.asarray(0)
    )


@functools.partial(jax.jit, static_argnums=0)
def _prepared(objective: Dino, batch: Any) -> Any:
    return objective.prepare(batch, jax.random.key(2))


@functools.partial(jax.jit, static_argnums=0)
def _loss(objective: Dino, params: Any, context: Context, batch: Any) -> tuple[Any, Any]:
    prepared = _prepared(objective, batch)
    return objective.loss(params, context, prepared, jax.random.key(3))


@functools.partial(jax.jit, static_argnums=0)
def _encoded(objective: Dino, params: Any, crops: Any) -> jax.Array:
    image = (crops.astype(jnp.float32) / 255 - 0.5) / 0.5
    out = objective.module.apply({"params": params}, image, train=False)
    return objective._head(HEAD).apply({"params": params["dino_head"]}, out.features)


def test_dino_is_the_mean_over_pairs_of_crops() -> None:
    objective = _objective()
    params, context = _started(objective)
    batch = _batch(objective)
    loss, aux = _loss(objective, params, context, batch)
    taught = context.ema["params"]
    scores = [_encoded(objective, taught, batch[name]) for name in ("global_1", "global_2")]
    centre = context.objective["dino_head"]
    targets = [np.asarray(softmax_targets(score, centre, 0.07)) for score in scores]
    crops = [batch["global_1"], batch["global_2"], batch["local"][:, 0], batch["local"][:, 1]]
    pairs = []
    for s, crop in enumerate(crops):
        likely = np.asarray(jax.nn.log_softmax(_encoded(objective, params, crop) / 0.1))
        pairs += [-(t * likely).sum(axis=1).mean() for i, t in enumerate(targets) if i != s]
    assert float(loss) == pytest.approx(np.mean(pairs), rel=1e-4)
    new = updated_centre(centre, jnp.concatenate(scores), 0.9)
    np.testing.assert_allclose(aux.objective["dino_head"], new, rtol=1e-4)
    assert set(aux.metrics) >= {"target_entropy", "marginal_entropy", "feature_rank"}


def test_the_student_alone_is_regularised() -> None:
    objective = _objective(dropout_rate=0.5)
    params, context = _started(objective)
    batch = _prepared(objective, _batch(objective))

    @jax.jit
    def loss(key: int) -> jax.Array:
        return objective.loss(params, context, batch, jax.random.key(key))[1]

    one, other = loss(3).metrics, loss(4).metrics
    assert one["dino_loss"] != other["dino_loss"]
    assert one["target_entropy"] == other["target_entropy"]


def test_no_gradient_reaches_the_teacher() -> None:
    objective = _objective(patch_weight=1.0, balance=Balance.SINKHORN, spread_weight=0.1)
    params, context = _started(objective)
    batch = _prepared(objective, _batch(objective))

    def loss(average: Any) -> jax.Array:
        ctx = dataclasses.replace(context, ema=average)
        return objective.loss(params, ctx, batch, jax.random.key(3))[0]

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(context.ema)))


def test_the_loss_of_dinov2_is_the_sum_of_its_terms() -> None:
    objective = _objective(patch_weight=1.0, balance=Balance.SINKHORN, spread_weight=0.1)
    params, context = _started(objective)
    batch = _batch(objective)
    loss, aux = _loss(objective, params, context, batch)
    metrics = aux.metrics
    total = metrics["dino_loss"] + metrics["ibot_loss"] + 0.1 * metrics["koleo_loss"]
    assert float(loss) == pytest.approx(float(total), rel=1e-6)
    assert aux.objective is None
    taught = context.ema["params"]
    prepared = _prepared(objective, batch)
    # The hidden patches, one by one: targets of the teacher, who sees all patches.
    variables = {"params": taught}
    apply = jax.jit(objective.module.apply, static_argnames="train")
    tokens = apply(variables, prepared["large"], train=False).tokens[:, 1:]
    head = objective._head(HEAD)
    hidden = np.asarray(prepared["source"]) == 16
    rows = [tokens[i][np.flatnonzero(mask)] for i, mask in enumerate(hidden)]
    scores = head.apply({"params": taught["ibot_head"]}, jnp.concatenate(rows))
    targets = np.asarray(sinkhorn(scores, 0.07))
    image, source = prepared["large"], prepared["source"]
    out = apply({"params": params}, image, train=True, source=source)
    found, at = 0.0, 0
    for i, mask in enumerate(hidden):
        if mask.any():
            own = head.apply(
                {"params": params["ibot_head"]}, out.tokens[i, 1:][np.flatnonzero(mask)]
            )
            likely = np.asarray(jax.nn.log_softmax(own / 0.1))
            found -= (targets[at : at + mask.sum()] * likely).sum(axis=1).mean()
            at += int(mask.sum())
    assert hidden.any(axis=1).sum() == 8  # half of sixteen large crops
    assert float(metrics["ibot_loss"]) == pytest.approx(found / 16, rel=1e-3)
    both = out.features.reshape(8, 2, -1)
    koleo = dino.koleo(both[:, 0]) + dino.koleo(both[:, 1])
    assert float(metrics["koleo_loss"]) == pytest.approx(float(koleo), rel=1e-4)


def test_patches_may_use_the_images_head() -> None:
    # Two heads with the same weights are one head: the loss is the same, the gradients add up.
    fields = {"patch_weight": 1.0, "balance": Balance.CENTRE}
    apart, shared = _objective(**fields), _objective(**fields, shared_head=True)
    params, context = _started(apart)
    params["ibot_head"] = params["dino_head"]
    context.ema["params"]["ibot_head"] = context.ema["params"]["dino_head"]
    fewer = {name: value for name, value in params.items() if name != "ibot_head"}
    assert fewer.keys() == jax.eval_shape(shared.init, jax.random.key(0))[0].keys()
    batch = _prepared(shared, _batch(shared))

    def gradient(objective: Dino, params: Any) -> Any:
        def loss(params: Any) -> Any:
            return objective.loss(params, context, batch, jax.random.key(3))

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    (two, aux), first = gradient(apart, params)
    (one, other), second = gradient(shared, fewer)
    assert float(one) == pytest.approx(float(two), rel=1e-6)
    jax.tree.map(np.testing.assert_array_equal, aux.objective, other.objective)
    both = jax.tree.map(jnp.add, first["dino_head"], first["ibot_head"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), second["dino_head"], both
    )


def _assert_close(actual: Any, expected: Any) -> None:
    # Gradients of up to 120, in float32: a small one beside them is rounded by their last bits.
    rounding = 4 * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, 1e-4, 2e-5 + rounding)


def test_eight_devices_compute_the_same() -> None:
    """By centres; Sinkhorn's targets on a mesh are test_unlabelled_steps.py's."""
    objective = _objective(patch_weight=1.0, balance=Balance.CENTRE, spread_weight=0.1)
    params, context = _started(objective)
    batch = _batch(objective, 16)

    def both(params: Any, batch: Any) -> Any:
        return jax.value_and_grad(lambda p: _loss(objective, p, context, batch), has_aux=True)(
            params
        )

    (alone, aux), grads = jax.jit(both)(params, batch)
    mesh = sharding.make_mesh(MeshConfig(data=4, fsdp=2))
    with jax.set_mesh(mesh):
        where = sharding.batch_sharding(mesh)
        (spread, other), many = jax.jit(both)(params, jax.device_put(batch, where))
    assert float(spread) == pytest.approx(float(alone), rel=1e-5)
    jax.tree.map(_assert_close, grads, many)
    assert aux.objective.keys() == {"dino_head", "ibot_head"}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), aux.objective, other.objective
    )


def test_flops_are_the_students_three_times_and_the_teachers() -> None:
    objective = _objective(small_crops=1)
    variables = {"params": jax.eval_shape(objective.init, jax.random.key(0))[0]}
    large = objectives.Objective.flops(objective, variables) // 3  # one forward pass
    image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    small_flops = count(lambda v, x: objective.module.apply(v, x, train=False), variables, image)
    head = 2 * (16 * 16 + 16 * 16 + 16 * 8 + 8 * 12)
    student = 2 * large + small_flops + 3 * head
    assert objective.flops(variables) == 3 * student + 2 * large + 2 * head
