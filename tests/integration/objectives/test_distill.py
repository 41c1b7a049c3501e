# SPDX-License-Identifier: Apache-2.0
"""Distillation against DeiT's own losses and numbers by hand; what the teacher is given."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.unit.models.tiny import TINY
from tests.unit.objectives.test_distill import (
    BATCH,
    LOGITS_,
    PARAMS,
    RNG,
    TABLE,
    TARGETS,
    TAUGHT,
    context,
    distill,
    softmax,
)
from tests.unit.train import teachers
from vit_jax import models
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.distill.cache import INDEX, LOGITS, REST, TOP, compact, dense
from vit_jax.distill.teacher import make_teacher
from vit_jax.models.losses import Loss
from vit_jax.objectives.distill import distillation_loss


@pytest.mark.parametrize("kind, alpha, tau", [("hard", 0.5, 1.0), ("soft", 0.1, 3.0)])
def test_losses_equal_the_official_ones(kind: str, alpha: float, tau: float) -> None:
    cfg = TeacherConfig(kind=Distillation(kind), alpha=alpha, temperature=tau)
    objective = distill(True, cfg)
    loss, (metrics, *_) = objective.loss(PARAMS, context({"teacher": TAUGHT}), BATCH, RNG)
    expected = TABLE[f"loss|distill_{kind},alpha={alpha},tau={tau},base=soft_target_ce"]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)
    np.testing.assert_allclose(
        metrics["base_loss"], TABLE["loss|soft_target_ce,lam=0.3,smoothing=0.1"], rtol=1e-6
    )


def test_each_head_learns_from_its_own() -> None:
    cfg = TeacherConfig(kind=Distillation.SOFT)
    objective = distill(True, cfg, label_smoothing=0.1, loss=Loss.SIGMOID)

    def gradient(frozen: jax.Array, targets: jax.Array) -> Any:
        batch = {**BATCH, "targets": targets}
        run = jax.grad(lambda p: objective.loss(p, context({"teacher": frozen}), batch, RNG)[0])
        return run(PARAMS)

    now, other = gradient(TAUGHT, TARGETS), gradient(-TAUGHT, TARGETS)
    np.testing.assert_array_equal(now["cls"], other["cls"])
    assert (now["dist"] != other["dist"]).any()
    other = gradient(TAUGHT, 1 - TARGETS)
    np.testing.assert_array_equal(now["dist"], other["dist"])
    assert (now["cls"] != other["cls"]).any()


def predict(cfg: models.ModelConfig, variables: Any, image: Any) -> jax.Array:
    module = models.create(cfg)
    return jax.jit(lambda v, x: module.apply(v, x, train=False).logits)(variables, image)


def test_the_teacher_learns_nothing_and_runs_on_its_own_statistics() -> None:
    model = dataclasses.replace(TINY["regnet"], num_classes=7, zero_init_last=False)
    cfg = TeacherConfig(kind=Distillation.KL, teacher=model)
    objective = distill(False, cfg)
    teacher = make_teacher(cfg, (0.5,), (0.5,), (16, 16))
    object.__setattr__(objective, "teacher", teacher)
    variables = teachers.variables(model)
    image = jax.random.normal(RNG, (len(LOGITS_), 16, 16, 3))
    batch = {**BATCH, "image": image}

    def loss(frozen: Any) -> jax.Array:
        return objective.loss(PARAMS, context(frozen), batch, RNG)[0]

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))({"teacher": variables})):
        assert not leaf.any()
    logits = jax.jit(objective.teacher)(variables, image)
    assert np.std(logits, axis=0).min() > 0.1
    np.testing.assert_array_equal(logits, predict(model, variables, image))


def test_another_size_and_normalisation_are_as_by_hand() -> None:
    model = dataclasses.replace(TINY["regnet"], zero_init_last=False, image_size=(12, 20))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    cfg = TeacherConfig(kind=Distillation.HARD, teacher=model, mean=mean, std=std)
    ours, scale = (0.5, 0.4, 0.3), (0.25,)
    pixels = np.random.default_rng(0).random((2, 16, 16, 3)).astype(np.float32)
    image = (pixels - np.float32(ours)) / np.float32(scale)
    resized = [
        [
            np.asarray(Image.fromarray(one[..., c]).resize((20, 12), Image.Resampling.BICUBIC))
            for c in range(3)
        ]
        for one in pixels
    ]
    by_hand = (np.moveaxis(np.asarray(resized), 1, -1) - np.float32(mean)) / np.float32(std)
    variables = teachers.variables(model)
    expected = predict(model, variables, by_hand)
    logits = jax.jit(make_teacher(cfg, ours, scale, (16, 16)))(variables, image)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(logits).max() > 1


def test_the_largest_logits_and_the_sum_of_all_survive() -> None:
    logits = jnp.asarray(np.random.default_rng(0).normal(0, 3, (5, 7)), jnp.float32)
    kept = compact(logits, 3)
    rows = dense(kept[TOP], kept[INDEX].astype(jnp.uint16), kept[REST], 7)
    order = np.argsort(-np.asarray(logits), axis=1)
    for row, exact, places in zip(np.asarray(rows), np.asarray(logits), order, strict=True):
        np.testing.assert_allclose(row[places[:3]], exact[places[:3]], rtol=2**-11)
        rest = np.log(np.exp(exact[places[3:]]).sum() / 4)
        np.testing.assert_allclose(row[places[3:]], rest, rtol=1e-5)
    total = jax.nn.logsumexp(logits, axis=1)
    np.testing.assert_allclose(jax.nn.logsumexp(rows, axis=1), total, rtol=1e-3)
    assert compact(logits, 0)[LOGITS].dtype == jnp.float16


def test_the_largest_keep_their_shares_at_the_temperature() -> None:
    # So flat that at temperature 1 the others' share is another.
    logits = jnp.asarray(np.random.default_rng(1).integers(-6, 7, (5, 40)), jnp.float32)
    kept = compact(logits, 4, 2.0)
    rows = np.asarray(dense(kept[TOP], kept[INDEX], kept[REST], 40))
    shares, whole = softmax(rows / 2), softmax(np.asarray(logits) / 2)
    index = np.asarray(kept[INDEX])
    for found, expected in ((shares, whole), (1 - shares, 1 - whole)):
        found, expected = (np.take_along_axis(x, index, axis=1) for x in (found, expected))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    hotter = np.take_along_axis(softmax(rows), index, axis=1)
    assert (hotter > 1.01 * np.take_along_axis(softmax(np.asarray(logits)), index, axis=1)).all()


@pytest.mark.parametrize("kind", ["hard", "soft", "kl"])
def test_a_teacher_that_is_not_finite_has_no_finite_loss(kind: str) -> None:
    broken = TAUGHT.at[1, 2].set(jnp.nan).at[2].set(jnp.inf)
    cfg = TeacherConfig(kind=Distillation(kind))
    rows = np.asarray(distillation_loss(LOGITS_, broken, cfg))
    assert np.isfinite(rows).tolist() == [True, False, False, True]


def test_cached_logits_take_the_teachers_place() -> None:
    cfg = TeacherConfig(kind=Distillation.KL, cache="somewhere")
    objective = distill(False, cfg)
    live = objective.loss(PARAMS, context({"teacher": TAUGHT}), BATCH, RNG)[0]
    raw = {"image": jnp.zeros((len(LOGITS_), 1, 1, 1), jnp.uint8), "label": jnp.zeros(4, jnp.int32)}
    for top_k in (0, 3):
        rows = compact(TAUGHT, top_k)
        prepared = objective.prepare({**raw, **rows}, RNG)
        batch = {**prepared, **BATCH}
        cached = objective.loss(PARAMS, context({}), batch, RNG)[0]
        exact = dense(rows[TOP], rows[INDEX], rows[REST], 7) if top_k else TAUGHT
        expected = objective.loss(PARAMS, context({"teacher": exact}), BATCH, RNG)[0]
        np.testing.assert_allclose(cached, expected, rtol=1e-3)
        assert top_k == 0 or abs(cached - live) > 1e-3
