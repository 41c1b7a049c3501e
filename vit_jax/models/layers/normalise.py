# SPDX-License-Identifier: Apache-2.0
"""Normalisation of channels or of groups of them, with a backward pass of its own.

It saves the input and two numbers a channel, and reads them twice; what differentiation makes of
the two passes over the variance saves two arrays of the input's size in float32 and takes 1.3 (by
channel) to 1.5 (by group) times as long on a CPU.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def _normalise(
    x: Float[Array, "S N C"],
    scale: Float[Array | np.ndarray, " C"],
    bias: Float[Array | np.ndarray, " C"],
    group_width: int,
    epsilon: float,
    dtype: Any,
) -> tuple[Float[Array, "S N C"], Float[Array, "S C"], Float[Array, "S C"]]:
    """Give every `group_width` channels of a sample mean 0 and variance 1; scale and shift them.

    Returns:
        The result in `dtype`, and the float32 mean and biased variance of each channel's group,
        through which there is no gradient.
    """
    scale, bias = jnp.asarray(scale), jnp.asarray(bias)
    wide = x.astype(jnp.float32)
    mean = _over_groups(wide.mean(axis=1), group_width)
    centred = wide - mean[:, None]
    variance = _over_groups(jnp.square(centred).mean(axis=1), group_width)
    factor = scale[None] * jax.lax.rsqrt(variance + epsilon)
    return (centred * factor[:, None] + bias[None, None]).astype(dtype), mean, variance


normalise = jax.custom_vjp(_normalise, nondiff_argnums=(3, 4, 5))


def _forward(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    group_width: int,
    epsilon: float,
    dtype: Any,
) -> tuple[Any, tuple[jax.Array, ...]]:
    y, mean, variance = _normalise(x, scale, bias, group_width, epsilon, dtype)
    return (y, mean, variance), (x, jnp.asarray(scale), mean, variance)


def _backward(
    group_width: int, epsilon: float, dtype: Any, saved: tuple[jax.Array, ...], gradients: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, scale, mean, variance = saved
    inverse = jax.lax.rsqrt(variance + epsilon)
    unit = (x.astype(jnp.float32) - mean[:, None]) * inverse[:, None]
    dy = gradients[0].astype(jnp.float32)
    of_bias, of_scale = dy.sum(axis=1), (dy * unit).sum(axis=1)
    # What moves the mean and what moves the deviation changes nothing.
    shift = _over_groups(of_bias * scale[None], group_width) / x.shape[1]
    stretch = _over_groups(of_scale * scale[None], group_width) / x.shape[1]
    dx = (dy * scale[None, None] - shift[:, None] - unit * stretch[:, None]) * inverse[:, None]
    return dx.astype(x.dtype), of_scale.sum(axis=0), of_bias.sum(axis=0)


normalise.defvjp(_forward, _backward)


def _over_groups(channels: Float[Array, "S C"], width: int) -> Float[Array, "S C"]:
    """Give every channel its group's mean."""
    if width == 1:
        return channels
    means = channels.reshape(channels.shape[0], -1, width).mean(axis=-1)
    return jnp.repeat(means, width, axis=-1)
