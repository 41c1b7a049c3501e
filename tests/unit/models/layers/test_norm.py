# SPDX-License-Identifier: Apache-2.0
"""Normalisation's own backward pass against Flax's norms, differentiated by JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from vit_jax.models.layers.norm import RMSNorm, TokenNorm, normalize_groups, token_norm

EPSILON = 1e-2  # large enough to be missed


@pytest.mark.parametrize("group_width", [1, 3])
def test_equals_flax(group_width: int) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(2, 0.5, (2, 7, 6)), jnp.float32)
    scale, bias = (jnp.asarray(rng.normal(size=6), jnp.float32) for _ in range(2))
    other = jnp.asarray(rng.normal(size=x.shape), jnp.float32)
    if group_width == 1:  # of one sample a batch
        x, other = x.reshape(1, -1, 6), other.reshape(1, -1, 6)
    norm = nn.GroupNorm(6 // group_width, epsilon=EPSILON, use_fast_variance=False)

    def flax(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
        y = norm.apply({"params": {"scale": scale, "bias": bias}}, x)
        assert isinstance(y, jax.Array)
        return (y * other).sum(), y

    def own(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
        y, mean, variance = normalize_groups(x, scale, bias, group_width, EPSILON, jnp.float32)
        return (y * other).sum(), (y, mean, variance)

    arguments = (x, scale, bias)
    expected, wanted = jax.jit(jax.grad(flax, (0, 1, 2), has_aux=True))(*arguments)[::-1]
    (y, mean, variance), found = jax.jit(jax.grad(own, (0, 1, 2), has_aux=True))(*arguments)[::-1]
    np.testing.assert_allclose(y, expected, atol=1e-5)
    for gradient, other_gradient in zip(found, wanted, strict=True):
        np.testing.assert_allclose(gradient, other_gradient, atol=1e-5)
    grouped = np.asarray(x).reshape(x.shape[0], -1, 6 // group_width, group_width)
    np.testing.assert_allclose(mean[:, ::group_width], grouped.mean((1, 3)), rtol=1e-5)
    np.testing.assert_allclose(variance[:, ::group_width], grouped.var((1, 3)), rtol=1e-4)


def test_rms_norm_equals_flax() -> None:
    rng = np.random.default_rng(0)
    x, other = (jnp.asarray(rng.normal(2, 0.5, (2, 7, 6)), jnp.float32) for _ in range(2))
    scale = jnp.asarray(rng.normal(size=6), jnp.float32)

    def loss(norm: nn.Module, x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = norm.apply({"params": {"scale": scale}}, x)
        assert isinstance(y, jax.Array)
        return (y * other).sum(), y

    own, flax = RMSNorm(EPSILON, jnp.float32), nn.RMSNorm(epsilon=EPSILON)
    gradients = [
        jax.jit(jax.grad(lambda *a, n=n: loss(n, *a), (0, 1), has_aux=True))(x, scale)
        for n in (own, flax)
    ]
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("kind, names", [(TokenNorm.RMS, {"scale"}), (TokenNorm.LAYER, None)])
def test_only_layer_norm_has_a_bias(kind: TokenNorm, names: set[str] | None) -> None:
    norm = token_norm(kind, 1e-6, jnp.bfloat16, "x")
    y, variables = jax.eval_shape(norm.init_with_output, jax.random.key(0), jnp.ones((2, 3)))
    assert y.dtype == jnp.bfloat16
    assert set(variables["params"]) == (names or {"scale", "bias"})
