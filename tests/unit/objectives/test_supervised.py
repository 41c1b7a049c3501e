# SPDX-License-Identifier: Apache-2.0
"""Losses against numbers computed by hand, and the objective around them."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import models, objectives
from vit_jax.data import DataConfig
from vit_jax.models.losses import Loss
from vit_jax.objectives import Context, MaskedPatchConfig, Supervised, SupervisedConfig
from vit_jax.settings.fields import conform


def _objective(seen: dict, **fields: object) -> Supervised:
    class Linear(Supervised):
        def apply(self, params: Any, model_state: Any, image: Any, rng: Any, *, train: bool) -> Any:
            seen.update(train=train, image=image)
            return SimpleNamespace(logits=image.reshape(image.shape[0], -1) @ params), model_state

    cfg = fields.pop("cfg", SupervisedConfig())
    data = DataConfig(mean=(0.5,), std=(0.25,), **fields)
    return Linear(cfg, models.variant("vit_mu16", num_classes=3), data)


NOTHING = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)


BATCH = {
    "image": jnp.array([[[[0]]], [[[255]]]], jnp.uint8),
    "label": jnp.array([0, 2], jnp.int32),
}


def test_without_train_mode_the_model_runs_as_evaluated() -> None:
    seen: dict = {}
    objective = _objective(seen, cfg=SupervisedConfig(train_mode=False))
    batch = objective.prepare(BATCH, jax.random.key(0))
    objective.loss(jnp.ones((1, 3)), NOTHING, batch, jax.random.key(0))
    assert seen["train"] is False


def test_loss_is_the_mean_and_the_model_trains() -> None:
    seen: dict = {}
    objective = _objective(seen)
    batch = objective.prepare(BATCH, jax.random.key(0))
    weights = jnp.array([[1.0, 0.0, 3.0]])
    loss, aux = objective.loss(weights, NOTHING, batch, jax.random.key(1))
    logits = np.array([[-2.0, 0, -6], [2, 0, 6]])
    log_z = np.log(np.exp(logits).sum(1))
    assert float(loss) == pytest.approx((log_z - logits[[0, 1], [0, 2]]).mean(), rel=1e-6)
    assert float(aux.metrics["top1"]) == 0.5
    assert seen["train"] is True
    assert aux.model_state == {}


def test_labels_go_to_the_devices_where_they_are_learned() -> None:
    assert _objective({}).fields == ("label",)
    model, data = models.variant("vit_mu8", num_classes=0), DataConfig()
    assert objectives.create(MaskedPatchConfig(), model, data).fields == ()


def test_multi_hot_labels() -> None:
    objective = _objective({}, cfg=SupervisedConfig(loss=Loss.SIGMOID))
    label = jnp.array([[1, 0, 1], [0, 0, 1]], jnp.uint8)
    out = objective.prepare({**BATCH, "label": label}, jax.random.key(0))
    np.testing.assert_array_equal(out["targets"], label)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range(smoothing: float) -> None:
    with refused_by("settings.fields.check_range", "objective.label_smoothing"):
        conform(SupervisedConfig(label_smoothing=smoothing), "objective.")
