# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation (arXiv:1502.03167) over the global batch, with PyTorch's running statistics.

The running mean and variance are the collection `batch_stats`; `apply(..., train=True,
mutable=["batch_stats"])` returns their new values.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.group_norm import normalize_groups

# The share of the old running statistics that a step keeps: PyTorch's `momentum=0.1`.
MOMENTUM = 0.9


class BatchNorm(nn.Module):
    """Normalise each channel over batch and space; scale and bias it.

    In training by the batch's own mean and biased variance, float32 in two passes; in evaluation by
    the running ones, whose variance is the unbiased, as in PyTorch (Flax stores the biased). Under
    `jit` over a mesh the means are of the global batch ("SyncBatchNorm"), so the statistics do not
    depend on the layout; micro-batches of gradient accumulation have statistics of their own.
    """

    epsilon: float
    dtype: Any
    train: bool
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: Float[Array, "B *space C"]) -> Float[Array, "B *space C"]:
        shape = (x.shape[-1],)
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
