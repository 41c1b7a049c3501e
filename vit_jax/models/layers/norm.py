# SPDX-License-Identifier: Apache-2.0
"""Normalisation: LayerNorm, RMSNorm, GroupNorm (arXiv:1803.08494), BatchNorm, LayerScale.

Statistics are float32, in two passes: Flax's default E[x^2]-E[x]^2 loses digits where the variance
is small against the mean.
"""

import enum
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import spread
from vit_jax.models.layers.init import Initializer


class TokenNorm(enum.StrEnum):
    """How tokens are normalised over their width."""

    LAYER = "layer"  # mean 0, variance 1; scale and bias
    RMS = "rms"  # mean square 1; scale


def layer_norm(epsilon: float, dtype: Any, name: str) -> "LayerNorm":
    """Create a LayerNorm of the last axis, its output in `dtype`."""
    return LayerNorm(epsilon, dtype, name=name)


def token_norm(kind: TokenNorm, epsilon: float, dtype: Any, name: str) -> nn.Module:
    """Create a norm of the last axis, its output in `dtype`."""
    return (RMSNorm if kind is TokenNorm.RMS else LayerNorm)(epsilon, dtype, name=name)


class LayerNorm(nn.Module):
    """Normalise the last axis; parameters `scale` and `bias` [D] in float32, as `nn.LayerNorm`."""

    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        flat = x.reshape(-1, x.shape[-1])  # the backward pass sums over a single axis
        y = normalize(flat, jnp.asarray(scale), jnp.asarray(bias), self.epsilon)
        return jnp.asarray(y, self.dtype).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(
    x: Float[Array, "T D"], scale: Float[Array, "D"], bias: Float[Array, "D"], epsilon: float
) -> Float[Array, "T D"]:
    """Return (x - mean) / sqrt(var + epsilon) * scale + bias over D, in float32.

    The gradient is explicit: XLA's CPU backend needs 2.3 times as long for autodiff's.
    """
    return _layer_forward(x, scale, bias, epsilon)[0]


def _layer_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=1, keepdims=True)
    centered = wide - mean
    rstd = jax.lax.rsqrt(jnp.square(centered).mean(axis=1, keepdims=True) + epsilon)
    return centered * (rstd * scale[None]) + bias[None], (x, mean, rstd, scale)


def _layer_backward(
    epsilon: float, kept: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients; that of x is rstd (g - mean(g) - unit mean(g unit)) with g = dy scale.

    The means are products with `scale`, which need no array of g.
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


normalize.defvjp(_layer_forward, _layer_backward)


class RMSNorm(nn.Module):
    """Divide by the root mean square of the last axis (arXiv:1910.07467); a scale [D], float32."""

    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        y = divide_by_rms(x.reshape(-1, x.shape[-1]), jnp.asarray(scale), self.epsilon)
        return jnp.asarray(y, self.dtype).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def divide_by_rms(
    x: Float[Array, "T D"], scale: Float[Array, "D"], epsilon: float
) -> Float[Array, "T D"]:
    """Return x / sqrt(mean(x^2) + epsilon) * scale over D, in float32, with explicit gradients."""
    return _rms_forward(x, scale, epsilon)[0]


def _rms_forward(
    x: jax.Array, scale: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.square(wide).mean(axis=1, keepdims=True) + epsilon)
    return wide * (inverse * scale[None]), (x, inverse, scale)


def _rms_backward(
    epsilon: float, kept: tuple[jax.Array, ...], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients; that of x is that of `normalize` without the mean of g."""
    del epsilon
    x, inverse, scale = kept
    unit = x.astype(jnp.float32) * inverse
    product = dy * unit
    mean_g_unit = _times(product, scale / scale.size)
    dx = inverse * (dy * scale[None] - unit * mean_g_unit)
    return dx.astype(x.dtype), product.sum(axis=0)


divide_by_rms.defvjp(_rms_forward, _rms_backward)


class LayerScale(nn.Module):
    """Multiply every channel by a learned factor (CaiT, arXiv:2103.17239 section 2.1)."""

    init_value: float

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        init = nn.initializers.constant(self.init_value)
        gamma = self.param("gamma", init, (x.shape[-1],), jnp.float32)
        return x * spread(jnp.asarray(gamma), x.shape, x.dtype)


class GroupNorm(nn.Module):
    """Normalise each of `num_groups` groups of channels over space; scale and bias every channel.

    `num_groups` divides the channels. The backward pass keeps the input and two numbers a channel;
    autodiff keeps two float32 arrays of the input's size and takes 1.3 (by channel) to 1.5 (by
    group) times as long on a CPU.
    """

    num_groups: int
    epsilon: float
    dtype: Any
    scale_init: Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        batch, channels = x.shape[0], x.shape[-1]
        scale = self.param("scale", self.scale_init, (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        width = channels // self.num_groups
        flat = x.reshape(batch, x.shape[1] * x.shape[2], channels)
        y, _, _ = normalize_groups(flat, scale, bias, width, self.epsilon, self.dtype)
        return y.reshape(x.shape)


def _group(
    x: Float[Array, "S N C"],
    scale: Float[Array | np.ndarray, " C"],
    bias: Float[Array | np.ndarray, " C"],
    group_width: int,
    epsilon: float,
    dtype: Any,
) -> tuple[Float[Array, "S N C"], Float[Array, "S C"], Float[Array, "S C"]]:
    """Give every `group_width` channels of a sample mean 0 and variance 1; scale and shift them.

    Return the result in `dtype`, and the float32 mean and biased variance of each channel's group,
    which pass no gradient.
    """
    scale, bias = jnp.asarray(scale), jnp.asarray(bias)
    wide = x.astype(jnp.float32)
    mean = _over_groups(wide.mean(axis=1), group_width)
    centred = wide - mean[:, None]
    variance = _over_groups(jnp.square(centred).mean(axis=1), group_width)
    factor = scale[None] * jax.lax.rsqrt(variance + epsilon)
    return (centred * factor[:, None] + bias[None, None]).astype(dtype), mean, variance


normalize_groups = jax.custom_vjp(_group, nondiff_argnums=(3, 4, 5))


def _group_forward(x: jax.Array, scale: jax.Array, *rest: Any) -> tuple[Any, tuple[jax.Array, ...]]:
    y, mean, variance = _group(x, scale, *rest)
    return (y, mean, variance), (x, jnp.asarray(scale), mean, variance)


def _group_backward(
    group_width: int, epsilon: float, dtype: Any, saved: tuple[jax.Array, ...], gradients: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, variance = saved
    inverse = jax.lax.rsqrt(variance + epsilon)
    dy = gradients[0].astype(jnp.float32)
    # XLA's CPU backend would compute `unit` from `x` alone before it has `dy`, often in the forward
    # pass, and hold one per layer: a tenth of a ResNet's step. It drops optimization barriers
    # before it orders operations; the sum with 0 * dy stays, since 0 * NaN is not 0.
    unit = (x.astype(jnp.float32) + 0 * dy - mean[:, None]) * inverse[:, None]
    of_bias, of_scale = dy.sum(axis=1), (dy * unit).sum(axis=1)
    # A gradient that only moves the mean or the deviation of a group changes nothing.
    shift = _over_groups(of_bias * scale[None], group_width) / x.shape[1]
    stretch = _over_groups(of_scale * scale[None], group_width) / x.shape[1]
    dx = (dy * scale[None, None] - shift[:, None] - unit * stretch[:, None]) * inverse[:, None]
    return dx.astype(x.dtype), of_scale.sum(axis=0), of_bias.sum(axis=0)


normalize_groups.defvjp(_group_forward, _group_backward)


def _over_groups(channels: Float[Array, "S C"], width: int) -> Float[Array, "S C"]:
    """Replace every channel by its group's mean."""
    if width == 1:
        return channels
    means = channels.reshape(channels.shape[0], -1, width).mean(axis=-1)
    return jnp.repeat(means, width, axis=-1)


# The share of the old running statistics that a step keeps: PyTorch's `momentum=0.1`.
MOMENTUM = 0.9


class BatchNorm(nn.Module):
    """Normalise each channel over batch and space; scale and bias it (arXiv:1502.03167).

    The running mean and variance are the collection `batch_stats`; `apply(..., train=True,
    mutable=["batch_stats"])` returns their new values. Training uses the batch's own mean and
    biased variance, evaluation the running ones, whose variance is unbiased, as in PyTorch (Flax
    stores the biased). Without `affine` nothing is learned: no scale, no bias. Under `jit` over a
    mesh the means are of the global batch ("SyncBatchNorm"), so the statistics do not depend on the
    layout; each micro-batch of gradient accumulation has its own.
    """

    epsilon: float
    dtype: Any
    train: bool
    scale_init: nn.initializers.Initializer = nn.initializers.ones
    affine: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "B *space C"]) -> Float[Array, "B *space C"]:
        shape = (x.shape[-1],)
        scale, bias = jnp.ones(shape), jnp.zeros(shape)
        if self.affine:
            scale = self.param("scale", self.scale_init, shape, jnp.float32)
            bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        if self.train:
            flat = x.reshape(1, -1, x.shape[-1])
            y, mean, var = normalize_groups(flat, scale, bias, 1, self.epsilon, self.dtype)
            if not self.is_initializing():
                count = math.prod(x.shape[:-1])
                # One value has no unbiased variance, here 0; PyTorch refuses to train on it.
                unbiased = var[0] * (count / max(count - 1, 1))
                running_mean.value = MOMENTUM * running_mean.value + (1 - MOMENTUM) * mean[0]
                running_var.value = MOMENTUM * running_var.value + (1 - MOMENTUM) * unbiased
            return y.reshape(x.shape)
        centred = x.astype(jnp.float32) - _last(running_mean.value, x.ndim)
        factor = scale * jax.lax.rsqrt(running_var.value + self.epsilon)
        y = centred * _last(factor, x.ndim) + _last(bias, x.ndim)
        return y.astype(self.dtype)


def _last(vector: Float[Array | np.ndarray, " C"], ndim: int) -> Float[Array, "*ones C"]:
    """Shape [C] to broadcast over the last of `ndim` axes."""
    return jnp.asarray(vector).reshape(*[1] * (ndim - 1), -1)
