# SPDX-License-Identifier: Apache-2.0
"""Losses against numbers computed by hand, and the objective around them."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.objectives.test_supervised import BATCH, NOTHING, _objective
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig, MixConfig
from vit_jax.data.augment import mix
from vit_jax.errors import UserError
from vit_jax.models.losses import Loss, example_loss
from vit_jax.objectives import SupervisedConfig

LOGITS = jnp.array([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
TARGETS = jnp.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
PLAIN = models.variant("vit_ti16")


def test_softmax() -> None:
    log_z = math.log(math.exp(2) + 1 + math.exp(-1))
    expected = [log_z - 2, math.log(3)]
    np.testing.assert_allclose(example_loss(LOGITS, TARGETS, Loss.SOFTMAX), expected, rtol=1e-6)


def test_smoothing_and_mixed_targets_equal_timm() -> None:
    table = np.load(Path(__file__).parents[2] / "golden" / "loss_tables.npz")
    targets = mix.targets(jnp.asarray(table["loss|labels"].astype(np.int32)), 7, 0.1)
    mixed = 0.3 * targets + 0.7 * targets[::-1]  # timm's partner is the batch reversed
    np.testing.assert_allclose(mixed, table["mixup_target|lam=0.3,smoothing=0.1"], atol=1e-7)
    logits = jnp.asarray(table["loss|logits"])
    for given, name in (
        (targets, "label_smoothing_ce=0.1"),
        (mixed, "soft_target_ce,lam=0.3,smoothing=0.1"),
    ):
        loss = example_loss(logits, given, Loss.SOFTMAX).mean()
        np.testing.assert_allclose(loss, table[f"loss|{name}"], rtol=1e-6)
    # The table's targets are smoothed: all of them are above 0.
    loss = example_loss(logits, 1.0 * (mixed > 0), Loss.BCE).mean()
    np.testing.assert_allclose(loss, table["loss|bce_targets_gt_0"], rtol=1e-6)


def test_sigmoid_sums_over_the_classes_and_bce_takes_the_mean() -> None:
    def log_sigmoid(x: float) -> float:
        return -math.log1p(math.exp(-x))

    first = -(log_sigmoid(2) + log_sigmoid(-0.0) + log_sigmoid(1))
    expected = [first, 3 * math.log(2)]
    np.testing.assert_allclose(example_loss(LOGITS, TARGETS, Loss.SIGMOID), expected, rtol=1e-6)
    mean = example_loss(LOGITS, TARGETS, Loss.BCE)
    np.testing.assert_allclose(mean, np.array(expected) / 3, rtol=1e-6)


def test_extreme_logits_stay_finite() -> None:
    logits = jnp.array([[1e4, -1e4, 0.0]])
    for loss in Loss:
        gradient = jax.grad(lambda x, kind=loss: example_loss(x, TARGETS[:1], kind).sum())(logits)
        assert np.isfinite(example_loss(logits, TARGETS[:1], loss)).all()
        assert np.isfinite(gradient).all()


def test_prepare_normalises_and_smooths() -> None:
    objective = _objective({}, cfg=SupervisedConfig(label_smoothing=0.3))
    out = objective.prepare(BATCH, jax.random.key(0))
    np.testing.assert_allclose(out["image"].ravel(), [-2, 2], rtol=1e-6)
    np.testing.assert_allclose(out["targets"], [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]], rtol=1e-6)


def test_prepare_mixes_images_and_targets_alike() -> None:
    plain = _objective({}).prepare(BATCH, jax.random.key(0))
    out = _objective({}, mix=MixConfig(mixup_alpha=1.0)).prepare(BATCH, jax.random.key(0))
    share = float(out["targets"][0, 0])
    assert 0.5 <= share < 1
    other = share * plain["image"][0] + (1 - share) * plain["image"][1]
    np.testing.assert_allclose(out["image"][0], other, rtol=1e-5)


def test_prepare_erases_what_is_normalised_and_before_it_is_mixed() -> None:
    batch = {
        "image": jnp.full((32, 8, 8, 1), 255, jnp.uint8),
        "label": jnp.arange(32, dtype=jnp.int32) % 3,
        "teacher_logits": jnp.arange(32.0),
    }
    erased = jax.jit(_objective({}, erasing_prob=1.0).prepare)(batch, jax.random.key(0))
    boxes = erased["image"] != 2  # white, normalised
    assert boxes.any(axis=(1, 2, 3)).all()
    assert abs(erased["image"][boxes].mean()) < 0.2
    both = _objective({}, erasing_prob=1.0, mix=MixConfig(mixup_alpha=1.0))
    out = jax.jit(both.prepare)(batch, jax.random.key(0))
    share = float(out["targets"].max())
    wanted = share * erased["image"] + (1 - share) * jnp.roll(erased["image"], 1, axis=0)
    np.testing.assert_allclose(out["image"], wanted, atol=1e-5)
    np.testing.assert_array_equal(out["teacher_logits"], batch["teacher_logits"])


def test_binarized_targets_are_all_labels_of_a_mixed_image() -> None:
    cfg = SupervisedConfig(loss=Loss.BCE, binarize=True)
    objective = _objective({}, cfg=cfg, mix=MixConfig(mixup_alpha=1.0))
    out = objective.prepare(BATCH, jax.random.key(0))
    np.testing.assert_array_equal(out["targets"], [[1, 0, 1], [1, 0, 1]])
    # Either label is a hit.
    weights = jnp.array([[1.0, 0.0, -1.0]])
    _, aux = objective.loss(weights, NOTHING, out, jax.random.key(1))
    assert float(aux.metrics["top1"]) == 1


BINARY = {"loss": Loss.BCE, "binarize": True}
MIXED = MixConfig(cutmix_alpha=1.0)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({**BINARY, "loss": Loss.SOFTMAX}, "binarize makes targets that are no distribution"),
        ({**BINARY, "label_smoothing": 0.1}, "makes every class a target"),
    ],
)
def test_targets_that_make_no_sense(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SupervisedConfig(**fields).check(PLAIN, DataConfig(mix=MIXED))


@pytest.mark.parametrize("rate", ["dropout_rate", "attention_dropout_rate", "drop_path_rate"])
def test_settings_without_effect_are_refused(rate: str) -> None:
    dropping, mixed = models.variant("vit_ti16", **{rate: 0.1}), DataConfig(mix=MIXED)
    binary, evaluated = SupervisedConfig(**BINARY), SupervisedConfig(train_mode=False)
    with pytest.raises(UserError, match="binarize has no effect on images not mixed"):
        binary.check(PLAIN, DataConfig())
    with pytest.raises(UserError, match=rf"model.{rate}=0.1 has no effect"):
        evaluated.check(dropping, DataConfig())
    with pytest.raises(UserError, match=rf"model.{rate}=0.1 has no effect"):
        config_lib.check(Config(model=dropping, objective=evaluated))
    binary.check(dropping, mixed)
    evaluated.check(PLAIN, DataConfig())
