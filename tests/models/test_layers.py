# SPDX-License-Identifier: Apache-2.0
"""The transformer's layers against their definitions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.attention import attend
from vit_jax.models.layers.drop_path import DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.posemb import sincos2d


def test_sincos_table() -> None:
    table = sincos2d(2, 3, 8)
    assert table.shape == (6, 8)
    # Row 1, column 2 of the grid: x = 2, y = 1; two frequencies, 1 and 1/10000.
    expected = [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]
    expected += [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)]
    np.testing.assert_allclose(table[5], expected, atol=1e-7)


def test_gelus() -> None:
    x = jnp.linspace(-4, 4, 101)
    exact = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in np.asarray(x)])
    np.testing.assert_allclose(gelu(x, Gelu.ERF), exact, atol=1e-6)
    assert 1e-4 < np.abs(gelu(x, Gelu.TANH) - exact).max() < 5e-4
    np.testing.assert_allclose(gelu(x, Gelu.QUICK), x / (1 + np.exp(-1.702 * x)), atol=1e-6)


def test_attention_equals_its_definition_forward_and_backward() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, 3, 5, 4)) for key in keys)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        logits = jnp.einsum("bhnd,bhmd->bhnm", q, k) / 2.0
        return jnp.einsum("bhnm,bhmd->bhnd", jax.nn.softmax(logits), v)

    np.testing.assert_allclose(attend(q, k, v), plain(q, k, v), atol=1e-6)
    grads = [
        jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)
        for f in (attend, plain)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *grads)


def test_attention_dropout_keeps_the_mean() -> None:
    q = k = jnp.zeros((1, 1, 64, 4))
    v = jnp.ones((1, 1, 64, 4))
    out = attend(q, k, v, dropout_rate=0.25, dropout_key=jax.random.key(0))
    assert float(out.mean()) == pytest.approx(1, abs=0.05)
    assert float(out.std()) > 0.02


def test_drop_path() -> None:
    np.testing.assert_allclose(drop_path_rates(0.3, 4, DropPathRule.LINEAR), [0, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(drop_path_rates(0.3, 2, DropPathRule.CONSTANT), [0.3, 0.3])
    out = drop_path(jnp.ones((4000, 2, 3)), jnp.float32(0.25), jax.random.key(0))
    kept = np.asarray(out)[:, 0, 0] > 0
    assert kept.mean() == pytest.approx(0.75, abs=0.03)
    # Whole examples, scaled so that the mean stays.
    np.testing.assert_allclose(out[kept], 1 / 0.75, rtol=1e-6)
    assert not out[~kept].any()
