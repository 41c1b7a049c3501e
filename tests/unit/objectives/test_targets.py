# SPDX-License-Identifier: Apache-2.0
"""The teacher's targets against the equations in float64, and on eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import sharding
from vit_jax.objectives import targets
from vit_jax.sharding import MeshConfig


def _logits(rows: int = 16, columns: int = 12, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(0).normal(scale=scale, size=(rows, columns)).astype(np.float32)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _sinkhorn(logits: np.ndarray, temperature: float, iterations: int) -> np.ndarray:
    q = np.exp(logits.astype(np.float64) / temperature).T
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(axis=1, keepdims=True) * len(q)
        q /= q.sum(axis=0, keepdims=True) * q.shape[1]
    return (q * q.shape[1]).T


def test_centred_softmax() -> None:
    logits, centre = _logits(), _logits(1)[0] / 2
    found = targets.softmax_targets(jnp.asarray(logits), jnp.asarray(centre), 0.04)
    expected = _softmax((logits.astype(np.float64) - centre) / 0.04)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_the_centre_moves_by_a_tenth() -> None:
    logits, centre = _logits(), np.full(12, 2.0, np.float32)
    found = targets.updated_centre(jnp.asarray(centre), jnp.asarray(logits), 0.9)
    expected = 0.9 * centre + 0.1 * logits.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_padding_moves_no_centre() -> None:
    logits, centre = _logits(), np.full(12, 2.0, np.float32)
    weights = np.arange(16) < 5
    given = (jnp.asarray(centre), jnp.asarray(logits), 0.9)
    found = targets.updated_centre(*given, jnp.asarray(weights, jnp.float32))
    expected = 0.9 * centre + 0.1 * logits[:5].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(targets.updated_centre(*given, jnp.zeros(16)), centre)


@pytest.mark.parametrize("iterations", [1, 3, 6])
def test_sinkhorn(iterations: int) -> None:
    found = targets.sinkhorn(jnp.asarray(_logits()), 0.5, iterations)
    np.testing.assert_allclose(found, _sinkhorn(_logits(), 0.5, iterations), rtol=2e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_sinkhorn_spreads_over_the_prototypes() -> None:
    logits = _logits(64, 4)
    logits[:, 0] += 3  # all prefer one
    even = targets.sinkhorn(jnp.asarray(logits), 0.5, 50)
    np.testing.assert_allclose(even.mean(axis=0), 0.25, atol=1e-4)


def test_sinkhorn_of_large_logits() -> None:
    found = targets.sinkhorn(jnp.asarray(_logits(scale=100.0)), 0.04)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_sinkhorn_leaves_padding_out() -> None:
    logits, weights = _logits(), (np.arange(16) % 3 > 0).astype(np.float32)
    found = targets.sinkhorn(jnp.asarray(logits), 0.5, 3, jnp.asarray(weights))
    real = weights > 0
    np.testing.assert_allclose(found[real], _sinkhorn(logits[real], 0.5, 3), rtol=2e-5)
    assert not np.asarray(found)[~real].any()


def test_sinkhorn_without_a_row() -> None:
    found = targets.sinkhorn(jnp.asarray(_logits()), 0.5, 3, jnp.zeros(16))
    assert not np.asarray(found).any()


def test_targets_and_centre_are_equal_on_eight_devices() -> None:
    logits = jnp.asarray(_logits(64, 24))
    centre = jnp.zeros(24)

    def every(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return targets.sinkhorn(logits, 0.1), targets.updated_centre(centre, logits, 0.9)

    alone = jax.jit(every)(logits)
    mesh = sharding.make_mesh(MeshConfig(data=8))
    with jax.set_mesh(mesh):
        spread = jax.jit(every)(jax.device_put(logits, sharding.batch_sharding(mesh)))
    for one, many in zip(alone, spread, strict=True):
        np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-7)


def test_entropies() -> None:
    p = _softmax(_logits().astype(np.float64))
    given = jnp.asarray(p, jnp.float32)
    each = -(p * np.log(p)).sum(axis=1)
    assert float(targets.target_entropy(given)) == pytest.approx(each.mean(), rel=1e-5)
    weights = jnp.asarray(np.arange(16) < 4, jnp.float32)
    assert float(targets.target_entropy(given, weights)) == pytest.approx(each[:4].mean(), rel=1e-5)
    mean = p.mean(axis=0)
    expected = -(mean * np.log(mean)).sum()
    assert float(targets.marginal_entropy(given)) == pytest.approx(expected, rel=1e-5)
    certain = jnp.asarray(np.eye(12)[[3] * 16], jnp.float32)
    assert float(targets.target_entropy(certain)) == 0
    assert float(targets.marginal_entropy(certain)) == 0
