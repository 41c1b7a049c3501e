# SPDX-License-Identifier: Apache-2.0
"""The loss of numbers by hand: standardised, with what is not known left out, and put back."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig, several
from vit_jax.data.several import Numbers
from vit_jax.data.sources.base import Labelled
from vit_jax.errors import UserError
from vit_jax.models.losses import Loss
from vit_jax.objectives import (
    Context,
    DistillConfig,
    Regression,
    RegressionConfig,
    RegressionLoss,
    Supervised,
    SupervisedConfig,
)

NOTHING = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)
VALUE = jnp.array([[3.0, 10.0], [7.0, jnp.nan]])
BATCH = {"image": jnp.array([[[[0]]], [[[255]]]], jnp.uint8), "value": VALUE}
MODEL = models.variant("vit_mu16", num_classes=2)


def _linear(kind: Any) -> Any:
    class Linear(kind):
        def apply(self, params: Any, model_state: Any, image: Any, rng: Any, *, train: bool) -> Any:
            return SimpleNamespace(logits=image.reshape(image.shape[0], -1) @ params), model_state

    return Linear


def _objective(mix: MixConfig | None = None, **fields: Any) -> Regression:
    cfg = RegressionConfig(mean=(5.0, 8.0), std=(2.0, 4.0), **fields)
    return _linear(Regression)(
        cfg, MODEL, DataConfig(mean=(0.5,), std=(0.5,), mix=mix or MixConfig())
    )


@pytest.mark.parametrize("loss", RegressionLoss)
def test_loss_is_of_standardised_errors_and_of_what_is_known(loss: RegressionLoss) -> None:
    is_huber = loss is RegressionLoss.HUBER
    objective = _objective(loss=loss, **({"delta": 0.5} if is_huber else {}))
    batch = objective.prepare(BATCH, jax.random.key(0))
    np.testing.assert_allclose(batch["targets"], [[-1, 0.5], [1, 0]])
    np.testing.assert_array_equal(batch["known"], [[1, 1], [1, 0]])
    weights = jnp.array([[0.75, 2.0]])  # guesses (-0.75, -2), (0.75, 2)
    found, aux = objective.loss(weights, NOTHING, batch, jax.random.key(1))
    errors = np.array([[0.25, -2.5], [-0.25, 0]])
    each = errors**2
    if is_huber:
        each = np.where(abs(errors) <= 0.5, errors**2 / 2, 0.5 * (abs(errors) - 0.25))
    assert float(found) == pytest.approx(each.mean(), rel=1e-6)
    assert float(aux.metrics["error"]) == pytest.approx(abs(errors).mean(), rel=1e-6)


def test_a_mixture_of_what_is_not_known_is_not_known() -> None:
    mixed = _objective(MixConfig(mixup_alpha=1.0)).prepare(BATCH, jax.random.key(0))
    np.testing.assert_array_equal(mixed["known"], [[1, 0], [1, 0]])
    share = float(mixed["targets"][0, 0] - 1) / -2
    assert 0 < share < 1
    assert float(mixed["targets"][1, 0]) == pytest.approx(1 - 2 * (1 - share), abs=1e-6)
    gradient = jax.grad(lambda w: _objective().loss(w, NOTHING, mixed, jax.random.key(1))[0])(
        jnp.full((1, 2), 2.0)
    )
    assert float(gradient[0, 1]) == 0 != float(gradient[0, 0])


def test_labels_that_are_not_known_do_not_teach() -> None:
    label = jnp.array([[1, -1], [0, 1]], jnp.int8)
    batch = {"image": BATCH["image"], "label": label}
    for loss in (Loss.SIGMOID, Loss.BCE):
        objective = _linear(Supervised)(
            SupervisedConfig(loss=loss), MODEL, DataConfig(mean=(0.5,), std=(0.5,))
        )
        ready = objective.prepare(batch, jax.random.key(0))
        found, _ = objective.loss(jnp.array([[2.0, 3.0]]), NOTHING, ready, jax.random.key(1))
        nll = np.log1p(np.exp([[2.0, 0], [2.0, -3.0]]))
        each = nll[0, 0] + nll[1].sum() * (0.5 if loss is Loss.BCE else 1)
        assert float(found) == pytest.approx(each / 2, rel=1e-6)


class Measured(Labelled):
    name = "measured"
    class_names = ("mass", "age")

    def __init__(self, values: list) -> None:
        self.take_targets(Numbers(np.array(values, np.float32)))

    def __len__(self) -> int:
        assert self._targets is not None
        return len(self._targets)

    def read(self, index: int) -> dict:
        return self._target(index)

    def example_id(self, index: int) -> str:
        return str(index)

    def digest(self) -> str:
        return ""


def test_mean_and_deviation_are_the_training_splits() -> None:
    cfg = RegressionConfig().fitted(Measured([[1, 2], [3, np.nan], [5, 4]]))
    assert cfg.mean == (3, 3)
    assert cfg.std == pytest.approx((np.std([1, 3, 5]), 1), rel=1e-8)
    assert cfg.fitted(Measured([[0, 0]])) is cfg
    with pytest.raises(UserError, match="'age' is the same in all of measured: there is nothing"):
        RegressionConfig().fitted(Measured([[1, 2], [3, 2]]))
    with pytest.raises(UserError, match="'mass' is not known of any image of measured"):
        RegressionConfig().fitted(Measured([[np.nan, 2], [np.nan, 1]]))
    with pytest.raises(UserError, match="measured has numbers and no classes; set objective"):
        SupervisedConfig().check_source(Measured([[1, 2]]))


def test_a_head_takes_up_mean_and_deviation() -> None:
    rng = np.random.default_rng(0)
    head = {"kernel": rng.normal(size=(4, 2)), "bias": rng.normal(size=2)}
    x = rng.normal(size=(3, 4))
    cfg = RegressionConfig(mean=(5.0, 8.0), std=(2.0, 4.0))
    found = cfg.put_back({"params": {"head": head, "rest": 1}})["params"]
    guess = (x @ head["kernel"] + head["bias"]) * [2, 4] + [5, 8]
    np.testing.assert_allclose(
        x @ found["head"]["kernel"] + found["head"]["bias"], guess, rtol=1e-6
    )
    assert found["rest"] == 1


def test_refuses_what_does_not_go_together() -> None:
    data = DataConfig()
    for cfg, why in (
        (RegressionConfig(mean=(1.0,)), "are of each output; give as many of both"),
        (RegressionConfig(mean=(1.0,), std=(1.0,)), "is of 1, and the head has 2 outputs"),
        (RegressionConfig(delta=2.0), "objective.delta=2.0 is of objective.loss=huber"),
    ):
        with pytest.raises(UserError, match=why):
            cfg.check(MODEL, data)
    native = DataConfig(transform=TransformConfig(crop=Crop.NATIVE, lengths=(16,)))
    with pytest.raises(UserError, match="numbers are learned from images of one size, not"):
        RegressionConfig().check(MODEL, native)


def test_labels_that_are_not_known_are_for_plain_training_alone() -> None:
    source = Measured([[0, 1]])
    source.take_targets(several.read(["a\nb", "?a"]).labels)
    SupervisedConfig(loss=Loss.SIGMOID).check_source(source)
    with pytest.raises(UserError, match="labels that are not known"):
        DistillConfig(loss=Loss.SIGMOID).check_source(source)
