# SPDX-License-Identifier: Apache-2.0
"""Normalisation's own backward pass against Flax's norms, differentiated by JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.layers.norm import normalize_groups


def test_statistics_of_half_precision_are_wide() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(8, 0.1, (2, 4096, 4)), jnp.bfloat16)
    ones = jnp.ones(4)
    y, mean, _ = normalize_groups(x, ones, jnp.zeros(4), 2, 1e-6, jnp.bfloat16)
    exact = np.asarray(x, np.float64).reshape(2, 4096, 2, 2).mean((1, 3))
    np.testing.assert_allclose(mean[:, ::2], exact, rtol=1e-5)
    assert y.dtype == jnp.bfloat16
    dx = jax.grad(lambda x: normalize_groups(x, ones, ones, 2, 1e-6, jnp.bfloat16)[0][0, 0, 0])(x)
    assert dx.dtype == jnp.bfloat16
