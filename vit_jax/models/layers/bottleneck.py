# SPDX-License-Identifier: Apache-2.0
"""The bottleneck blocks of ResNet and RegNet: each convolution is followed by its BatchNorm.

arXiv:1512.03385 section 4.1, but the stride is on the 3x3 convolution; arXiv:2003.13678 section 3.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.base import Remat
from vit_jax.models.layers.batch_norm import BatchNorm
from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.drop_path import drop_path
from vit_jax.models.layers.grouped_conv import GroupedConv, kaiming_normal
from vit_jax.models.layers.stack import remat
from vit_jax.sharding import BATCH_AXES, constrain


class ConvNorm(nn.Module):
    """Convolution and BatchNorm, then a ReLU unless `linear`."""

    features: int
    kernel_size: int
    norm_eps: float
    dtype: Any
    train: bool
    stride: int = 1
    groups: int = 1
    linear: bool = False
    zero_scale: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        k, dtype = self.kernel_size, self.dtype
        conv = GroupedConv(self.features, k, dtype, self.stride, self.groups, name="conv")
        scale = nn.initializers.zeros if self.zero_scale else nn.initializers.ones
        x = BatchNorm(self.norm_eps, dtype, self.train, scale, name="bn")(conv(x))
        return x if self.linear else nn.relu(x)


class SqueezeExcite(nn.Module):
    """Weigh every channel by a gate that sees the means of all (arXiv:1709.01507)."""

    squeeze_dim: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        kernel = kaiming_normal()  # 1x1 convolutions to their authors
        y = x.mean(axis=(1, 2), dtype=jnp.float32)
        y = nn.relu(Dense(self.squeeze_dim, self.dtype, kernel, name="fc1")(y))
        y = nn.sigmoid(Dense(x.shape[-1], self.dtype, kernel, name="fc2")(y))
        return x * y[:, None, None]


class Bottleneck(nn.Module):
    """relu(shortcut + conv3(se(conv2(conv1(x))))); a shortcut to another shape is projected.

    Attributes:
        width, inner_width: channels of the output and between the three convolutions.
        stride, groups: of the 3x3 convolution.
        squeeze_dim: width of squeeze-and-excitation; 0 for none.
        zero_init_last: start the last BatchNorm's scale at zero.
    """

    width: int
    inner_width: int
    stride: int
    norm_eps: float
    dtype: Any
    train: bool
    groups: int = 1
    squeeze_dim: int = 0
    zero_init_last: bool = True
    drop_path_rate: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        common = {"norm_eps": self.norm_eps, "dtype": self.dtype, "train": self.train}
        strided = {"stride": self.stride, **common}
        y = ConvNorm(self.inner_width, 1, name="conv1", **common)(x)
        y = ConvNorm(self.inner_width, 3, groups=self.groups, name="conv2", **strided)(y)
        if self.squeeze_dim:
            y = SqueezeExcite(self.squeeze_dim, self.dtype, name="se")(y)
        zero = self.zero_init_last
        y = ConvNorm(self.width, 1, linear=True, zero_scale=zero, name="conv3", **common)(y)
        if self.drop_path_rate and self.train:
            y = drop_path(y, self.drop_path_rate, self.make_rng("dropout"))
        if x.shape[-1] != self.width or self.stride != 1:
            x = ConvNorm(self.width, 1, linear=True, name="downsample", **strided)(x)
        return constrain(nn.relu(x + y), BATCH_AXES)


class Stage(nn.Module):
    """Blocks of one shape, one for each rate of stochastic depth; the first has the stride.

    Attributes:
        squeeze_ratio: width of squeeze-and-excitation over a block's input; 0 for none.
        policy: what each block keeps for its backward pass.
    """

    width: int
    inner_width: int
    stride: int
    drop_path_rates: tuple[float, ...]
    norm_eps: float
    dtype: Any
    train: bool
    policy: Remat
    groups: int = 1
    squeeze_ratio: float = 0.0
    zero_init_last: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        block = remat(Bottleneck, self.policy)
        for j, rate in enumerate(self.drop_path_rates):
            x = block(
                width=self.width,
                inner_width=self.inner_width,
                stride=1 if j else self.stride,
                norm_eps=self.norm_eps,
                dtype=self.dtype,
                train=self.train,
                groups=self.groups,
                squeeze_dim=round(self.squeeze_ratio * x.shape[-1]),
                zero_init_last=self.zero_init_last,
                drop_path_rate=rate,
                name=f"block{j}",
            )(x)
        return x
