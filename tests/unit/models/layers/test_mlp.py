# SPDX-License-Identifier: Apache-2.0
"""SwiGLU's own backward pass against JAX's of its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.mlp import swiglu


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_swiglu_and_its_gradients(dtype: type) -> None:
    gate, x, other = np.random.default_rng(0).normal(0, 2, (3, 5, 7)).astype(np.float32)
    given = jnp.asarray(gate, dtype), jnp.asarray(x, dtype)

    def loss(function, gate: jax.Array, x: jax.Array) -> jax.Array:
        return (function(gate, x).astype(jnp.float32) * other).sum()

    def formula(gate: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.silu(gate.astype(jnp.float32)) * x.astype(jnp.float32)

    rtol, atol = (1e-5, 1e-6) if dtype is jnp.float32 else (2e-2, 0)
    assert swiglu(*given).dtype == dtype
    np.testing.assert_allclose(
        np.asarray(swiglu(*given), np.float32), formula(*given), rtol=rtol, atol=atol
    )
    found = jax.grad(lambda *a: loss(swiglu, *a), (0, 1))(*given)
    expected = jax.grad(lambda *a: loss(formula, *a), (0, 1))(
        *(g.astype(jnp.float32) for g in given)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), b, rtol=rtol, atol=atol)
