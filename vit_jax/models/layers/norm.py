# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation with the statistics in float32, and LayerScale."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.weighted import spread


def layer_norm(epsilon: float, dtype: Any, name: str) -> "LayerNorm":
    """Create a LayerNorm of the last axis, its output in `dtype`."""
    return LayerNorm(epsilon, dtype, name=name)


class LayerNorm(nn.Module):
    """Normalise the last axis; parameters `scale` and `bias` [D] in float32, as `nn.LayerNorm`'s.

    The variance is computed in two passes: Flax's default E[x^2]-E[x]^2 loses digits where it is
    small against the mean.
    """

    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        flat = x.reshape(-1, x.shape[-1])  # what the backward pass sums over is one axis
        y = normalize(flat, jnp.asarray(scale), jnp.asarray(bias), self.epsilon)
        return jnp.asarray(y, self.dtype).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(
    x: Float[Array, "T D"], scale: Float[Array, "D"], bias: Float[Array, "D"], epsilon: float
) -> Float[Array, "T D"]:
    """Return (x - mean) / sqrt(var + epsilon) * scale + bias over D, in float32.

    Its gradient is written out: XLA's CPU backend takes 2.3 times as long for what autodiff of the
    formula makes of it.
    """
    return _normalize(x, scale, bias, epsilon)[0]


def _normalize(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=1, keepdims=True)
    centered = wide - mean
    rstd = jax.lax.rsqrt(jnp.square(centered).mean(axis=1, keepdims=True) + epsilon)
    return centered * (rstd * scale[None]) + bias[None], (x, mean, rstd, scale)


def _normalize_backward(
    epsilon: float, kept: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients: of x, rstd (g - mean(g) - unit mean(g unit)) where g = dy scale.

    The means are written as products with `scale`, which need no array of g.
    """
    del epsilon
    x, mean, rstd, scale = kept
    unit = (x.astype(jnp.float32) - mean) * rstd
    product = dy * unit
    mean_g = _times(dy, scale / scale.size)
    mean_g_unit = _times(product, scale / scale.size)
    dx = rstd * (dy * scale[None] - mean_g - unit * mean_g_unit)
    return dx.astype(x.dtype), product.sum(axis=0), dy.sum(axis=0)


def _times(matrix: Float[Array, "T D"], vector: Float[Array, "D"]) -> Float[Array, "T 1"]:
    # Full precision: a matrix unit's default would round float32 operands.
    return jnp.matmul(matrix, vector, precision=jax.lax.Precision.HIGHEST)[:, None]


normalize.defvjp(_normalize, _normalize_backward)


class LayerScale(nn.Module):
    """Multiply every channel by a learned factor (CaiT, arXiv:2103.17239 section 2.1)."""

    init_value: float

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        init = nn.initializers.constant(self.init_value)
        gamma = self.param("gamma", init, (x.shape[-1],), jnp.float32)
        return x * spread(jnp.asarray(gamma), x.shape, x.dtype)
