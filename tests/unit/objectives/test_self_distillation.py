# SPDX-License-Identifier: Apache-2.0
"""The terms of self-distillation against the equations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.objectives import self_distillation as terms


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("skip_same", [True, False])
def test_dino(skip_same: bool) -> None:
    student, taught = _normal(3, 5, 7), _softmax(_normal(2, 5, 7, seed=1))
    pairs = []
    for s in range(3):
        for t in range(2):
            if not (skip_same and s == t):
                each = -(taught[t] * np.log(_softmax(student[s] / 0.1))).sum(axis=-1)
                pairs.append(each.mean())
    given = (jnp.asarray(student, jnp.float32), jnp.asarray(taught, jnp.float32))
    found = terms.dino_loss(*given, 0.1, skip_same=skip_same)
    assert float(found) == pytest.approx(np.mean(pairs), rel=1e-5)


def test_ibot() -> None:
    student, taught = _normal(6, 7), _softmax(_normal(6, 7, seed=1))
    # Image 0 hides three patches, image 1 one, image 2 none; two rows are padding.
    weights = np.array([1 / 3, 1 / 3, 1 / 3, 1, 0, 0])
    each = -(taught * np.log(_softmax(student / 0.1))).sum(axis=-1)
    expected = (each[:3].mean() + each[3]) / 3
    given = (jnp.asarray(x, jnp.float32) for x in (student, taught, weights))
    assert float(terms.ibot_loss(*given, 0.1, 3)) == pytest.approx(expected, rel=1e-5)


def test_koleo() -> None:
    features = _normal(9, 4)
    x = features / np.linalg.norm(features, axis=1, keepdims=True)
    logs = []
    for i in range(9):
        others = [j for j in range(9) if j != i]
        near = max(others, key=lambda j: float(x[i] @ x[j]))
        logs.append(np.log(np.linalg.norm(x[i] - x[near] + 1e-8) + 1e-8))
    found = terms.koleo(jnp.asarray(features, jnp.float32))
    assert float(found) == pytest.approx(-np.mean(logs), rel=1e-5)


def test_koleo_of_equal_features_has_a_gradient() -> None:
    for features in (jnp.ones((4, 3)), jnp.zeros((4, 3))):
        assert np.isfinite(terms.koleo(features))
        assert np.isfinite(jax.grad(terms.koleo)(features)).all()


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_feature_rank(shape: tuple[int, int]) -> None:
    features = _normal(*shape) * np.linspace(0.1, 2, shape[1])
    covariance = np.cov(features.T)
    expected = np.trace(covariance) ** 2 / (covariance**2).sum()
    found = terms.feature_rank(jnp.asarray(features, jnp.float32))
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_feature_rank_of_a_line_is_one() -> None:
    line = jnp.outer(jnp.arange(8.0), jnp.arange(1.0, 5.0))
    assert float(terms.feature_rank(line)) == pytest.approx(1, rel=1e-5)
    assert float(terms.feature_rank(jnp.ones((8, 4)))) == 0  # no variance at all
