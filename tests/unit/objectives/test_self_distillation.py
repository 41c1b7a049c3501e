# SPDX-License-Identifier: Apache-2.0
"""The terms of self-distillation against their equations in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.objectives.dino import dino_loss, feature_rank, ibot_loss, koleo

close = functools.partial(np.testing.assert_allclose, rtol=5e-6)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = np.float64(x)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def distribution(*shape: int) -> np.ndarray:
    return np.exp(log_softmax(2 * normal(*shape, seed=7))).astype(np.float32)


def cross_entropy(target: np.ndarray, logits: np.ndarray, temperature: float) -> np.ndarray:
    log_p = log_softmax(np.float64(logits) / temperature)
    return -(np.float64(target) * log_p).sum(axis=-1)


def plain_koleo(features: np.ndarray, eps: float) -> float:
    x = np.float64(features)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), eps)
    logs = []
    for i, row in enumerate(x):
        others = [j for j in range(len(x)) if j != i]
        nearest = max(others, key=lambda j: row @ x[j])
        logs.append(np.log(np.linalg.norm(row - x[nearest] + eps) + eps))
    return -np.mean(logs)


@pytest.mark.parametrize("skip_same", [True, False])
@pytest.mark.parametrize("crops", [(2, 2), (8, 2), (1, 3)])
def test_dino_is_the_mean_over_pairs_of_crops(crops, skip_same):
    students, teachers = crops
    student, targets = normal(students, 4, 6), distribution(teachers, 4, 6)
    pairs = [
        cross_entropy(targets[t], student[s], 0.1).mean()
        for s in range(students)
        for t in range(teachers)
        if not (skip_same and s == t)
    ]
    given = jnp.asarray(student), jnp.asarray(targets)
    close(dino_loss(*given, 0.1, skip_same=skip_same), np.mean(pairs))


def test_dino_without_a_pair_is_refused():
    one = jnp.ones((1, 4, 6))
    with pytest.raises(ValueError, match="make no pair"):
        dino_loss(one, one / 6, 0.1, skip_same=True)


def test_dino_trains_the_student_alone():
    student, targets = jnp.asarray(normal(3, 4, 6)), jnp.asarray(distribution(2, 4, 6))
    loss = functools.partial(dino_loss, skip_same=False)
    for_student, for_targets = jax.grad(loss, argnums=(0, 1))(student, targets, 0.1)
    pull = np.exp(log_softmax(normal(3, 4, 6) / 0.1)) - np.float64(targets).mean(axis=0)
    close(for_student, pull / 0.1 / (3 * 4), atol=1e-6)
    assert not np.any(for_targets)


def test_ibot_is_the_mean_over_images_of_the_mean_over_masked_patches():
    student, targets = normal(9, 6), distribution(9, 6)
    # Images of 3, 0 and 2 masked patches, and four places that only fill the buffer.
    weights = np.float32([1 / 3, 1 / 2, 0, 1 / 3, 0, 0, 1 / 2, 1 / 3, 0])
    each = cross_entropy(targets, student, 0.1)
    expected = (each[[0, 3, 7]].mean() + 0 + each[[1, 6]].mean()) / 3
    given = jnp.asarray(student), jnp.asarray(targets), jnp.asarray(weights)
    close(ibot_loss(*given, 0.1, 3), expected)
    gradients = jax.grad(ibot_loss, argnums=(0, 1))(*given, 0.1, 3)
    pull = (np.exp(log_softmax(student / np.float64(0.1))) - targets) * weights[:, None]
    close(gradients[0], pull / 0.1 / 3, atol=1e-6)
    assert not np.any(gradients[1])


@pytest.mark.parametrize("eps", [1e-8, 0.03])
@pytest.mark.parametrize("shape", [(9, 5), (2, 3)])
def test_koleo(shape, eps):
    features = normal(*shape) * np.linspace(0.005, 9, shape[0], dtype=np.float32)[:, None]
    close(koleo(jnp.asarray(features), eps), plain_koleo(features, eps))


def test_koleo_moves_both_of_a_pair_and_ignores_the_length():
    features = normal(6, 4)
    step = 1e-6
    gradient = np.asarray(jax.grad(koleo)(jnp.asarray(features)))
    for at in np.ndindex(6, 4):
        ahead, behind = np.float64(features), np.float64(features)
        ahead[at] += step
        behind[at] -= step
        slope = (plain_koleo(ahead, 1e-8) - plain_koleo(behind, 1e-8)) / (2 * step)
        np.testing.assert_allclose(gradient[at], slope, rtol=1e-4, atol=1e-5)
    close((gradient * features).sum(axis=1), np.zeros(6), atol=1e-5)


def test_koleo_of_equal_and_of_zero_features_is_finite():
    features = jnp.asarray(normal(6, 4)).at[3].set(normal(6, 4)[1]).at[4:].set(0)
    loss, gradient = jax.value_and_grad(koleo)(features)
    close(loss, plain_koleo(np.asarray(features), 1e-8), rtol=1e-4)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()
    all_equal, gradient = jax.value_and_grad(koleo)(jnp.ones((6, 4)))
    close(all_equal, -np.log(3e-8))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(40, 6), (5, 9)])
def test_feature_rank(shape):
    features = normal(*shape) * np.arange(1, shape[1] + 1, dtype=np.float32) + np.float32(2)
    covariance = np.cov(np.float64(features).T)
    expected = np.trace(covariance) ** 2 / np.trace(covariance @ covariance)
    close(feature_rank(jnp.asarray(features)), expected)
    close(feature_rank(jnp.asarray(features) * 2.0**-40), expected)


def test_feature_rank_counts_directions():
    line = jnp.arange(8.0)[:, None] * jnp.asarray([[1.0, 2.0, -1.0]]) + 5
    close(feature_rank(line), 1)
    close(feature_rank(jnp.concatenate([jnp.eye(3), -jnp.eye(3)])), 3)
    rank, gradient = jax.value_and_grad(feature_rank)(jnp.ones((8, 3)))
    assert rank == 0
    assert np.isfinite(gradient).all()


def test_half_precision_is_computed_in_float32():
    student = jnp.asarray(normal(2, 4, 6), jnp.bfloat16)
    targets = jnp.asarray(distribution(2, 4, 6))
    exact = student.astype(jnp.float32)
    close(
        dino_loss(student, targets, 0.1, skip_same=True),
        dino_loss(exact, targets, 0.1, skip_same=True),
    )
    weights = jnp.ones(4) / 4
    close(
        ibot_loss(student[0], targets[0], weights, 0.1, 1),
        ibot_loss(exact[0], targets[0], weights, 0.1, 1),
    )
    for term in (koleo, feature_rank):
        value = term(student[0])
        assert value.dtype == jnp.float32
        close(value, term(exact[0]))


@pytest.mark.parametrize("term", [koleo, feature_rank])
def test_eight_devices_give_the_term_of_one(term):
    features = normal(32, 5)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    spread = jax.device_put(features, NamedSharding(mesh, P("data")))
    close(jax.jit(term)(spread), jax.jit(term)(jnp.asarray(features)))
    gradient = jax.jit(jax.grad(term))
    close(gradient(spread), gradient(jnp.asarray(features)), atol=1e-6)
