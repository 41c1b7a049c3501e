# SPDX-License-Identifier: Apache-2.0
"""Group normalisation (arXiv:1803.08494), the statistics in float32 and two passes."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.init import Initializer
from vit_jax.models.layers.normalise import normalise


class GroupNorm(nn.Module):
    """Normalise each of `num_groups` groups of channels over space; scale and bias every channel.

    `num_groups` divides the channels.
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
        flat = x.reshape(batch, -1, channels)
        y, _, _ = normalise(flat, scale, bias, width, self.epsilon, self.dtype)
        return y.reshape(x.shape)
