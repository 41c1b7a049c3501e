# SPDX-License-Identifier: Apache-2.0
"""A teacher's targets against their equations in float64, on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.objectives.dino import (
    marginal_entropy,
    sinkhorn,
    softmax_targets,
    target_entropy,
    updated_centre,
)

close = functools.partial(np.testing.assert_allclose, rtol=5e-6)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def plain_sinkhorn(logits: np.ndarray, temperature: float, iterations: int) -> np.ndarray:
    q = np.exp(np.float64(logits) / temperature).T
    num_prototypes, num_rows = q.shape
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(axis=1, keepdims=True)
        q /= num_prototypes
        q /= q.sum(axis=0, keepdims=True)
        q /= num_rows
    return (q * num_rows).T


def over_eight(x: np.ndarray) -> jax.Array:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    return jax.device_put(x, NamedSharding(mesh, P("data")))


def padded(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a buffer with rows between the given ones, its weights and where those rows are."""
    at = np.arange(len(logits)) * 2 + 1
    buffer = normal(2 * len(logits) + 1, logits.shape[1], seed=9, scale=5)
    buffer[at] = logits
    weights = np.zeros(len(buffer), np.float32)
    weights[at] = 1
    return buffer, weights, at


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5)])
@pytest.mark.parametrize("rows", [(), (1,)])
def test_softmax_targets(shape, rows):
    logits, centre = normal(*shape), normal(*rows, 5, seed=1)
    expected = softmax((np.float64(logits) - centre.reshape(-1)) / 0.07)
    close(softmax_targets(jnp.asarray(logits), jnp.asarray(centre), 0.07), expected)


def test_temperature_may_be_traced():
    logits, centre = jnp.asarray(normal(4, 5)), jnp.asarray(normal(5, seed=1))
    traced = jax.jit(softmax_targets)(logits, centre, jnp.float32(0.07))
    close(traced, softmax_targets(logits, centre, 0.07))
    close(jax.jit(sinkhorn)(logits, jnp.float32(0.5)), sinkhorn(logits, 0.5))


def test_half_precision_is_computed_in_float32():
    logits = jnp.asarray(normal(6, 5), jnp.bfloat16)
    exact = np.asarray(logits, np.float64)
    centre = jnp.asarray(normal(5, seed=1), jnp.bfloat16)
    shift = np.asarray(centre, np.float64)
    close(softmax_targets(logits, centre, 0.5), softmax((exact - shift) / 0.5))
    close(sinkhorn(logits, 0.5), plain_sinkhorn(exact, 0.5, 3))
    moved = updated_centre(centre, logits, 0.9)
    assert moved.dtype == jnp.float32
    close(moved, 0.9 * shift + 0.1 * exact.mean(axis=0))


@pytest.mark.parametrize("rows", [(), (1,)])
def test_centre_moves_towards_the_mean_of_the_rows(rows):
    logits, centre = normal(7, 5), normal(*rows, 5, seed=1)
    moved = updated_centre(jnp.asarray(centre), jnp.asarray(logits), 0.9)
    close(moved, 0.9 * np.float64(centre) + 0.1 * np.float64(logits).mean(axis=0))
    assert moved.shape == centre.shape


def test_centre_without_the_rows_that_fill_the_buffer():
    logits, centre = normal(7, 5), normal(5, seed=1)
    buffer, weights, _ = padded(logits)
    buffer[0] = np.nan
    moved = updated_centre(jnp.asarray(centre), jnp.asarray(buffer), 0.9, jnp.asarray(weights))
    close(moved, 0.9 * np.float64(centre) + 0.1 * np.float64(logits).mean(axis=0))


def test_centre_stays_without_any_row():
    centre = jnp.asarray(normal(5, seed=1))
    moved = updated_centre(centre, jnp.asarray(normal(7, 5)), 0.9, jnp.zeros(7))
    np.testing.assert_array_equal(moved, centre)


@pytest.mark.parametrize("iterations", [1, 2, 3, 10])
@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_sinkhorn(shape, iterations):
    logits = normal(*shape, scale=0.25)
    found = sinkhorn(jnp.asarray(logits), 0.07, iterations)
    close(found, plain_sinkhorn(logits, 0.07, iterations))


def test_sinkhorn_without_the_rows_that_fill_the_buffer():
    logits = normal(12, 5)
    buffer, weights, at = padded(logits)
    buffer[0] = np.nan
    found = sinkhorn(jnp.asarray(buffer), 0.5, weights=jnp.asarray(weights))
    close(found[at], plain_sinkhorn(logits, 0.5, 3))
    assert not np.any(np.delete(found, at, axis=0))


def test_sinkhorn_of_an_empty_buffer_is_zero():
    assert not np.any(sinkhorn(jnp.asarray(normal(4, 5)), 0.5, weights=jnp.zeros(4)))


def test_sinkhorn_of_large_logits():
    # exp(logits / temperature) is up to 1e200, which float32 does not hold. A sum of that size has
    # an absolute error of 3e-5, and the exponential that as relative one.
    logits = np.clip(normal(12, 5, scale=8), -18, 18)
    found = sinkhorn(jnp.asarray(logits), 0.04)
    np.testing.assert_allclose(found, plain_sinkhorn(logits, 0.04, 3), rtol=3e-4, atol=1e-30)
    huge = sinkhorn(jnp.asarray(normal(12, 5, scale=1e5)), 0.04)
    close(huge.sum(axis=1), np.ones(12))


def test_sinkhorn_uses_prototypes_alike():
    logits = normal(12, 4) + np.float32([5, 0, 0, 0])
    balanced = sinkhorn(jnp.asarray(logits), 1.0, 50)
    np.testing.assert_allclose(balanced.sum(axis=0), np.full(4, 3), rtol=1e-4)


@pytest.mark.parametrize("weighted", [True, False])
def test_eight_devices_give_the_targets_of_one(weighted):
    logits, centre = normal(32, 5), jnp.asarray(normal(5, seed=1))
    weights = (np.arange(32) % 3 > 0).astype(np.float32) if weighted else None
    spread = over_eight(logits)
    assert len(spread.sharding.device_set) == 8
    shares = None if weights is None else over_eight(weights)
    one = None if weights is None else jnp.asarray(weights)
    rows = np.flatnonzero(weights) if weighted else np.arange(32)
    balance = jax.jit(lambda x, w: sinkhorn(x, 0.5, weights=w))
    close(balance(spread, shares), balance(jnp.asarray(logits), one))
    close(np.asarray(balance(spread, shares))[rows], plain_sinkhorn(logits[rows], 0.5, 3))
    move = jax.jit(lambda c, x, w: updated_centre(c, x, 0.9, w))
    close(move(centre, spread, shares), move(centre, jnp.asarray(logits), one))
    expected = 0.9 * np.float64(centre) + 0.1 * np.float64(logits)[rows].mean(axis=0)
    close(move(centre, spread, shares), expected)


def test_entropies():
    targets = softmax(np.float64(normal(7, 5, scale=2)))
    mean = targets.mean(axis=0)
    found = jnp.asarray(targets, jnp.float32)
    close(target_entropy(found), -(targets * np.log(targets)).sum(axis=1).mean())
    close(marginal_entropy(found), -(mean * np.log(mean)).sum())
    buffer, weights, _ = padded(found)
    of_buffer = jnp.asarray(np.abs(buffer)), jnp.asarray(weights)
    close(target_entropy(*of_buffer), target_entropy(found))
    close(marginal_entropy(*of_buffer), marginal_entropy(found))


def test_entropies_tell_both_ways_to_collapse():
    one_prototype, uniform = jnp.eye(5)[jnp.zeros(6, int)], jnp.full((6, 5), 0.2)
    assert (target_entropy(one_prototype), marginal_entropy(one_prototype)) == (0, 0)
    close(target_entropy(uniform), np.log(5))
    close(marginal_entropy(uniform), np.log(5))
    each = jnp.eye(5)
    assert target_entropy(each) == 0
    close(marginal_entropy(each), np.log(5))


def test_no_gradient_passes():
    weights = jnp.ones(6)

    def total(logits, centre):
        targets = sinkhorn(logits, 0.5, weights=weights) + softmax_targets(logits, centre, 0.5)
        rest = updated_centre(centre, logits, 0.9).sum() + target_entropy(logits**2)
        return (targets**2).sum() + rest + marginal_entropy(logits**2)

    logits, centre = jnp.asarray(normal(6, 5)), jnp.asarray(normal(5, seed=1))
    for gradient in jax.grad(total, argnums=(0, 1))(logits, centre):
        assert not np.any(gradient)
