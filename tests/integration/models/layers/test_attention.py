# SPDX-License-Identifier: Apache-2.0
"""The transformer's layers against their definitions."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from vit_jax.models.layers.attention import attend
from vit_jax.models.layers.drop import DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.norm import layer_norm


def _gradients(f: Callable[..., jax.Array], *args: Any) -> Any:
    """Differentiate f with cotangents that differ from number to number."""
    out, pullback = jax.vjp(f, *args)
    return pullback(jax.random.normal(jax.random.key(9), out.shape, out.dtype))


@pytest.mark.parametrize("form", Gelu)
def test_gelus(form: Gelu) -> None:
    x = np.linspace(-7, 7, 1001)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    slope_inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    cdf = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    sigmoid = 1 / (1 + np.exp(-1.702 * x))
    # In float64, as the papers have them: the value and its derivative.
    value, slope = {
        Gelu.TANH: (
            0.5 * x * (1 + np.tanh(inner)),
            0.5 * (1 + np.tanh(inner)) + 0.5 * x / np.cosh(inner) ** 2 * slope_inner,
        ),
        Gelu.ERF: (x * cdf, cdf + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)),
        Gelu.QUICK: (x * sigmoid, sigmoid + 1.702 * x * sigmoid * (1 - sigmoid)),
    }[form]
    single = jnp.asarray(x, jnp.float32)
    np.testing.assert_allclose(gelu(single, form), value, atol=1e-6)
    grad = jax.grad(lambda x: gelu(x, form).sum())(single)
    # XLA's tanh stops at 1 - 1e-7, which the derivative multiplies by x^3, whoever takes it.
    np.testing.assert_allclose(grad, slope, atol=1e-5 if form is Gelu.TANH else 1e-6)
    half = jax.vjp(lambda x: gelu(x, form), single.astype(jnp.bfloat16))
    assert half[0].dtype == half[1](half[0])[0].dtype == jnp.bfloat16


def test_layer_norm_equals_flax_forward_and_backward() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = 3 + 2 * jax.random.normal(keys[0], (2, 5, 16))
    params = {"scale": jax.random.normal(keys[1], (16,)), "bias": jax.random.normal(keys[2], (16,))}
    ours = layer_norm(1e-5, jnp.float32, "norm")
    flax = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)

    def apply(module: nn.Module, params: Any, x: jax.Array) -> jax.Array:
        return module.apply({"params": params}, x)

    assert jax.tree.map(jnp.shape, ours.init(keys[0], x)["params"]) == {
        "scale": (16,),
        "bias": (16,),
    }
    np.testing.assert_allclose(apply(ours, params, x), apply(flax, params, x), atol=1e-6)
    grads = [_gradients(functools.partial(apply, module), params, x) for module in (ours, flax)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), *grads)
    # Statistics in float32 of what comes in half precision, and back to it.
    half = layer_norm(1e-5, jnp.bfloat16, "norm")
    out, pullback = jax.vjp(lambda x: apply(half, params, x), x.astype(jnp.bfloat16))
    wide = apply(flax, params, x.astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_array_equal(out, wide.astype(jnp.bfloat16))
    assert pullback(out)[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("bias_shape", [None, (2, 1, 1, 7), (1, 3, 5, 7), (2, 3, 5, 7)])
def test_attention_equals_its_definition_forward_and_backward(
    bias_shape: tuple[int, ...] | None,
) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (2, 3, 5, 4))
    k, v = (jax.random.normal(key, (2, 3, 7, 4)) for key in keys[1:3])
    bias = None if bias_shape is None else jax.random.normal(keys[3], bias_shape)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        logits = jnp.einsum("bhnd,bhmd->bhnm", q, k) / 2.0
        weights = jax.nn.softmax(logits if bias is None else logits + bias)
        return jnp.einsum("bhnm,bhmd->bhnd", weights, v)

    def seam(*args: Any) -> jax.Array:
        return attend(*args[:3], bias=args[3] if len(args) == 4 else None)

    args = (q, k, v) if bias is None else (q, k, v, bias)
    np.testing.assert_allclose(seam(*args), plain(*args), atol=1e-6)
    grads = [_gradients(f, *args) for f in (seam, plain)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), *grads)


def test_attention_in_half_precision_is_near_and_stays_half() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    full = [jax.random.normal(key, (2, 3, 17, 8)) for key in keys]
    half = [x.astype(jnp.bfloat16) for x in full]
    # Twice bfloat16's spacing, 2^-8, of values of about 4.
    np.testing.assert_allclose(attend(*half).astype(jnp.float32), attend(*full), atol=0.03)
    grads = _gradients(attend, *half)
    assert {g.dtype for g in grads} == {jnp.dtype(jnp.bfloat16)}


def test_a_step_of_many_blocks_keeps_one_array_of_attention_weights_each() -> None:
    # What autodiff of the formula keeps besides: the logits' softmax in float32 and in the values'
    # dtype, its divisor and maximum, [B, h, N, M] each.
    q = k = v = jnp.ones((2, 3, 16, 4))
    kept = jax.tree.leaves(jax.vjp(attend, q, k, v)[1])
    assert sum(leaf.shape == (2, 3, 16, 16) for leaf in kept) == 1


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
