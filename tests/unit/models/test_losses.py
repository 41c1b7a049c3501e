# SPDX-License-Identifier: Apache-2.0
"""The three cross-entropies against their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.losses import Loss, example_loss

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], np.float32)
TARGETS = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]], np.float32)


def _binary() -> np.ndarray:
    p = 1 / (1 + np.exp(-LOGITS))
    return -(TARGETS * np.log(p) + (1 - TARGETS) * np.log(1 - p))


def _softmax() -> np.ndarray:
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    return -(TARGETS * np.log(p)).sum(axis=1)


@pytest.mark.parametrize(
    "loss, expected",
    [
        (Loss.SOFTMAX, _softmax()),
        (Loss.SIGMOID, _binary().sum(axis=1)),
        (Loss.BCE, _binary().mean(axis=1)),
    ],
)
def test_equals_the_definition(loss: Loss, expected: np.ndarray) -> None:
    found = example_loss(jnp.asarray(LOGITS), jnp.asarray(TARGETS), loss)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("loss", list(Loss))
def test_extreme_logits_have_a_finite_loss(loss: Loss) -> None:
    logits = jnp.asarray([[1e4, -1e4]])
    assert np.isfinite(example_loss(logits, jnp.asarray([[0.0, 1.0]]), loss)).all()
