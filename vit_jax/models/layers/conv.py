# SPDX-License-Identifier: Apache-2.0
"""Convolution and max-pooling of ResNets, and weight standardisation (arXiv:1903.10520 sec. 3)."""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax import hardware
from vit_jax.models.layers.grouped_conv import Pads, conv2d
from vit_jax.models.layers.init import Initializer
from vit_jax.models.layers.window_max import reduce_max, window_max
from vit_jax.sharding import constrain_parameter


class Padding(enum.StrEnum):
    """How convolutions and the stem's max-pool see the border: a fact of the weights."""

    SAME = "same"  # TensorFlow's: stride 2 on an even side pads one more after than before
    SYMMETRIC = "symmetric"  # PyTorch's: as much before as after
    FIXED = "fixed"  # BiT's: as symmetric, but the max-pool sees zeros there instead of nothing


@dataclasses.dataclass(frozen=True)
class WeightStd:
    """Weight standardisation: zero mean and unit variance of every output channel's kernel.

    Attributes:
        eps: keeps the division finite.
        outside: eps is added to the deviation (google-research/vision_transformer) instead of the
            variance (BiT, timm); on small weights the logits differ.
    """

    eps: float
    outside: bool = False

    def __call__(self, kernel: Float[Array, "k k I O"]) -> Float[Array, "k k I O"]:
        """Standardise over all but the output channels, by the biased variance."""
        flat = kernel.reshape(-1, kernel.shape[-1])  # sums over a single axis: 5 % of BiT's step
        flat = flat - flat.mean(axis=0, keepdims=True)
        variance = jnp.square(flat).mean(axis=0, keepdims=True)
        if self.outside:
            flat = flat / (jnp.sqrt(variance) + self.eps)
        else:
            flat = flat * jax.lax.rsqrt(variance + self.eps)
        return flat.reshape(kernel.shape)


class StdConv(nn.Module):
    """Convolution without bias; kernel [k, k, in, out] in float32, computed in `dtype`.

    `weight_std` standardises the kernel in float32; None leaves it as it is.
    """

    features: int
    kernel_size: int
    stride: int
    padding: Padding
    weight_std: WeightStd | None
    kernel_init: Initializer
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = jnp.asarray(self.param("kernel", self.kernel_init, shape, jnp.float32))
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        if self.weight_std is not None:
            kernel = self.weight_std(kernel)
        x = x.astype(self.dtype)
        pads = None
        if self.padding is Padding.SAME and self.kernel_size > 1:
            pads = _same_pads(x, self.kernel_size, self.stride)
        return conv2d(x, kernel, stride=self.stride, pads=pads)


def max_pool(x: Float[Array, "B H W C"], padding: Padding) -> Float[Array, "B P Q C"]:
    """Take the maximum of 3x3 at every second position."""
    if padding is Padding.FIXED:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    pads = ((0, 0), (0, 0)) if padding is Padding.FIXED else ((1, 1), (1, 1))
    if padding is Padding.SAME:
        pads = _same_pads(x, 3, 2)
    pool = window_max if hardware.target().platform == "cpu" else reduce_max
    return pool(x, 3, 2, pads)


def _same_pads(x: jax.Array, size: int, stride: int) -> Pads:
    rows, columns = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), "SAME")
    return rows, columns
