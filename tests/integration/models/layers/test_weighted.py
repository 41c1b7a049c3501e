# SPDX-License-Identifier: Apache-2.0
"""Gradients of bfloat16 layers are summed in float32, and nothing else of a program changes."""

import re
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from vit_jax import models
from vit_jax.cost.flops import count
from vit_jax.devices import hardware
from vit_jax.models.layers import dense
from vit_jax.models.layers.dense import ReduceDType, matmul, spread

TOKENS, DIM = 512, 8
TPU = hardware.Target("tpu", "TPU v5 lite")


def draw(dtype: Any = jnp.bfloat16) -> tuple[jax.Array, ...]:
    """x [T, I], kernel [I, O], bias [O], dy [T, O], all representable in bfloat16."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((TOKENS, DIM), (DIM, DIM), (DIM,), (TOKENS, DIM))
    x, kernel, bias, dy = (
        jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes, strict=True)
    )
    return x.astype(dtype), kernel.astype("float32"), bias.astype("float32"), dy.astype(dtype)


def linear(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    y = matmul(x, kernel)
    return y + spread(bias, y.shape, y.dtype)


def gradients(dtype: ReduceDType, compute: Any = jnp.bfloat16) -> tuple[jax.Array, ...]:
    """Return those of x, kernel and bias."""
    x, kernel, bias, dy = draw(compute)
    with dense.summing_in(dtype):
        return jax.vjp(linear, x, kernel, bias)[1](dy)


def test_a_sum_of_gradients_has_the_digits_of_float32() -> None:
    exact = gradients(ReduceDType.FLOAT32, jnp.float32)
    wide, narrow = gradients(ReduceDType.FLOAT32), gradients(ReduceDType.BFLOAT16)
    for got, coarse, want in zip(wide[1:], narrow[1:], exact[1:], strict=True):
        assert got.dtype == want.dtype == jnp.float32
        scale = float(jnp.abs(want).max())
        # Products of bfloat16 are exact in float32: the order of the sum is all that may differ.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * scale)
        assert float(jnp.abs(coarse - want).max()) > 1e-4 * scale
    assert wide[0].dtype == jnp.bfloat16
    np.testing.assert_array_equal(wide[0], narrow[0])


@pytest.mark.parametrize(("shape", "over"), [((3, 4, 8), (0, 1)), ((3, 8, 8), (0,))])
def test_a_spread_parameter_sums_over_what_it_was_repeated_over(
    shape: tuple[int, ...], over: tuple[int, ...]
) -> None:
    p = jnp.ones((1, *shape[1:])) if over == (0,) else jnp.ones(shape[-1])
    dy = jax.random.normal(jax.random.key(1), shape, jnp.bfloat16)
    with dense.summing_in(ReduceDType.FLOAT32):
        y, pull = jax.vjp(lambda p: jnp.zeros(shape, "bfloat16") + spread(p, shape, "bfloat16"), p)
    assert y.dtype == jnp.bfloat16
    want = np.asarray(dy, np.float32).sum(axis=over).reshape(p.shape)
    np.testing.assert_allclose(pull(dy)[0], want, rtol=1e-5, atol=1e-5)


def model_and_loss(**fields: Any) -> tuple[nn.Module, Any, Any]:
    cfg = models.ViTConfig(
        image_size=(16, 16), patch=(8, 8), dim=16, depth=2, num_heads=2, mlp_dim=32, **fields
    )
    module = models.create(cfg)
    image = jax.ShapeDtypeStruct((2, 16, 16, 3), "float32")
    params = jax.eval_shape(module.init, jax.random.key(0), image)["params"]

    def loss(params: Any, image: jax.Array) -> jax.Array:
        return cast(models.Output, module.apply({"params": params}, image)).logits.sum()

    return module, loss, (params, image)


def trace(sums: ReduceDType | None, **fields: Any) -> Any:
    """Return the program of a ViT's gradient; None differentiates as jax does."""
    _, loss, args = model_and_loss(**fields)
    if sums is None:
        with hardware.tracing_for(TPU):
            return jax.make_jaxpr(jax.grad(loss))(*args)
    # A CPU turns some gradients: see below.
    with dense.summing_in(sums), hardware.tracing_for(TPU):
        return jax.make_jaxpr(jax.grad(loss))(*args)


def flops(sums: ReduceDType, **fields: Any) -> int:
    _, loss, args = model_and_loss(**fields)
    with dense.summing_in(sums):
        return count(jax.grad(loss), *args)


@pytest.mark.parametrize("dtype", list(ReduceDType))
def test_a_float32_model_is_differentiated_as_ever(dtype: ReduceDType) -> None:
    assert printed(trace(dtype)) == printed(trace(None))


def test_bfloat16_sums_are_autodiffs() -> None:
    half = {"dtype": models.DType.BFLOAT16}
    assert printed(trace(ReduceDType.BFLOAT16, **half)) == printed(trace(None, **half))
    assert printed(trace(ReduceDType.FLOAT32, **half)) != printed(trace(None, **half))


@pytest.mark.parametrize("remat", list(models.Remat))
def test_no_policy_computes_a_matmul_more_often(remat: models.Remat) -> None:
    half = {"dtype": models.DType.BFLOAT16, "remat": remat}
    wide, narrow = (flops(dtype, **half) for dtype in ReduceDType)
    assert wide == narrow


def printed(jaxpr: Any) -> str:
    """Return a program's text without the addresses of functions."""
    return re.sub(r"0x[0-9a-fA-FxX]+", "", str(jaxpr))


@pytest.mark.parametrize(("inputs", "outputs"), [(128, 64), (64, 64), (64, 32)])
def test_a_cpu_turns_the_gradient_of_wide_kernels_with_twice_the_inputs(
    inputs: int, outputs: int
) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (TOKENS, inputs), (inputs, outputs), (TOKENS, outputs)
    x, kernel, dy = (jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))

    def gradient(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vjp(matmul, x, kernel)[1](dy)

    with dense.summing_in(ReduceDType.FLOAT32):
        step = jax.jit(lambda *args: gradient(*args)).lower(x, kernel, dy)
        with hardware.tracing_for(TPU):
            other = jax.jit(lambda *args: gradient(*args)).lower(x, kernel, dy)
    outside = jax.jit(lambda *args: gradient(*args)).lower(x, kernel, dy)
    found = ["optimization_barrier" in each.as_text() for each in (step, other, outside)]
    assert found == [(inputs, outputs) == (128, 64), False, False]
    for got, want in zip(step.compile()(x, kernel, dy), (dy @ kernel.T, x.T @ dy), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
