# SPDX-License-Identifier: Apache-2.0
"""Depth by one linear layer on each patch (DINOv3, arXiv:2508.10104 section 6.1.2; AdaBins' bins).

BatchNorm, 256 scores of a patch, relu + 0.1, divided by their sum: weights of depths that lie
evenly between the least and the greatest (facebookresearch/dinov3, eval/depth).
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.norm import BatchNorm

_EPS = 1e-5  # of BatchNorm, PyTorch's
_LEAST = 0.1  # what is added to each score, so that no sum is 0


class LinearDepth(nn.Module):
    """The head: parameters `norm` and `conv`, statistics of `norm` in `batch_stats`.

    Attributes:
        bins: how many depths.
        least, greatest: the first and the last of them.
        train: normalise by the batch's own statistics.
    """

    bins: int
    least: float
    greatest: float
    train: bool = False

    @nn.compact
    def __call__(self, patches: Float[Array, "B P Q D"]) -> Float32[Array, "B P Q"]:
        x = BatchNorm(_EPS, jnp.float32, self.train, name="norm")(patches)
        scores = Dense(self.bins, jnp.float32, nn.initializers.normal(0.01), name="conv")(x)
        weights = nn.relu(scores) + _LEAST
        depths = jnp.linspace(self.least, self.greatest, self.bins)
        depths = depths.reshape(1, 1, 1, -1)
        return (weights * depths).sum(axis=-1) / weights.sum(axis=-1)
