# SPDX-License-Identifier: Apache-2.0
"""Bottleneck ResNets: the blocks of ResNet and RegNet, and the layers of BiT and the hybrids.

arXiv:1512.03385 section 4.1, but the stride is on the 3x3 convolution; arXiv:2003.13678 section 3.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.models.base import Output, Remat, compute_dtype, record
from vit_jax.models.conv.conv import Conv, Padding, WeightStd, kaiming_normal, max_pool
from vit_jax.models.layers.block import remat
from vit_jax.models.layers.dense import Dense, classifier
from vit_jax.models.layers.drop import Dropout, DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.init import Init, Initializer
from vit_jax.models.layers.norm import BatchNorm, GroupNorm

# The scale of a standardised weight does not affect its output, only how fast updates rotate it.
CONV_INIT: dict[Init, Initializer] = {
    Init.JAX: nn.initializers.lecun_normal(),
    Init.TIMM: kaiming_normal(),
    Init.MOCO: kaiming_normal(),  # timm's too
}


class Norm(enum.StrEnum):
    """Which normalisation."""

    GROUP = "group"  # arXiv:1803.08494
    BATCH = "batch"  # arXiv:1502.03167


@dataclasses.dataclass(frozen=True)
class ConvLayers:
    """Creates the convolutions and norms of one network, which share these settings."""

    padding: Padding
    weight_std: WeightStd | None
    kernel_init: Initializer
    norm_kind: Norm
    norm_eps: float
    num_groups: int  # of a GroupNorm
    dtype: Any  # of the computation; statistics are float32
    train: bool  # a BatchNorm normalises by the batch and updates the running statistics

    def conv(self, features: int, kernel_size: int, stride: int, name: str) -> Conv:
        """Create a square convolution."""
        return Conv(
            features,
            kernel_size,
            self.dtype,
            stride,
            padding=self.padding,
            weight_std=self.weight_std,
            kernel_init=self.kernel_init,
            name=name,
        )

    def norm(self, name: str, scale_init: Initializer = nn.initializers.ones) -> nn.Module:
        """Create a norm of `norm_kind`."""
        if self.norm_kind is Norm.BATCH:
            return BatchNorm(self.norm_eps, self.dtype, self.train, scale_init, name=name)
        return GroupNorm(self.num_groups, self.norm_eps, self.dtype, scale_init, name=name)


class Projection(nn.Module):
    """The shortcut of a stage's first block: a strided 1x1 convolution, and its norm if any."""

    width: int
    stride: int
    layers: ConvLayers
    has_norm: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        x = self.layers.conv(self.width, 1, self.stride, "conv")(x)
        return self.layers.norm("norm")(x) if self.has_norm else x


class LayersStage(nn.Module):
    """Blocks of one width; the first has the stride and the projection."""

    block: type[nn.Module]  # with the fields width, stride, is_first and layers
    depth: int
    width: int
    stride: int
    layers: ConvLayers

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        for j in range(self.depth):
            stride = self.stride if j == 0 else 1
            x = self.block(self.width, stride, j == 0, self.layers, name=f"block{j}")(x)
        return x


class Stem(nn.Module):
    """A 7x7 convolution and a max-pool, both of stride 2; optionally norm and ReLU between them."""

    width: int
    layers: ConvLayers
    has_norm: bool

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        x = self.layers.conv(self.width, 7, 2, "conv")(image)
        x = nn.relu(self.layers.norm("norm")(x)) if self.has_norm else x
        return max_pool(x, self.layers.padding)


def make_map(
    layers: ConvLayers,
    block: type[nn.Module],
    policy: Remat,
    image: Float[Array, "B H W C"],
    depths: Sequence[int],
    stem_width: int,
    widths: Sequence[int],
    *,
    stem_norm: bool,
) -> Float[Array, "B P Q F"]:
    """Apply "stem", "stage0", "stage1" ... of the calling module to a normalised image.

    All stages but the first halve the map. `policy` is what each block keeps for its backward pass;
    with `stem_norm` the stem has a norm and a ReLU.
    """
    x = constrain(Stem(stem_width, layers, stem_norm, name="stem")(image), BATCH_AXES)
    block = remat(block, policy)
    for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        x = LayersStage(block, depth, width, 1 if i == 0 else 2, layers, name=f"stage{i}")(x)
    return x


def round_channels(channels: int) -> int:
    """Round to the nearest multiple of 8, at least 8 and not below 90 % of `channels` (timm)."""
    rounded = max(8, (channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def bottleneck(width: int) -> int:
    """Return the inner width of a bottleneck block."""
    return round_channels(width // 4)


def ungrouped(stem: int, stages: Sequence[int], num_groups: int) -> list[int]:
    """List the widths of a network that `num_groups` groups cannot share equally."""
    widths = {stem, *stages, *map(bottleneck, stages)}
    return sorted(width for width in widths if width % num_groups)


class StageShape(NamedTuple):
    """The shape of a stage's blocks."""

    depth: int
    width: int  # channels of a block's output
    inner_width: int  # channels between its three convolutions
    stride: int  # of the first block
    groups: int = 1  # of the 3x3 convolutions


class ConvNorm(nn.Module):
    """Convolution and BatchNorm, then a ReLU unless `linear`; `cfg` is a ResNet's or a RegNet's."""

    features: int
    kernel_size: int
    cfg: Any
    train: bool
    stride: int = 1
    groups: int = 1
    linear: bool = False
    zero_scale: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        k, dtype = self.kernel_size, compute_dtype(self.cfg)
        conv = Conv(self.features, k, dtype, self.stride, self.groups, name="conv")
        scale = nn.initializers.zeros if self.zero_scale else nn.initializers.ones
        x = BatchNorm(self.cfg.norm_eps, dtype, self.train, scale, name="bn")(conv(x))
        return x if self.linear else nn.relu(x)


class SqueezeExcite(nn.Module):
    """Weigh every channel by a gate that sees the means of all (arXiv:1709.01507)."""

    squeeze_dim: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        kernel = kaiming_normal()  # the authors write 1x1 convolutions
        y = x.mean(axis=(1, 2), dtype=jnp.float32)
        y = nn.relu(Dense(self.squeeze_dim, self.dtype, kernel, name="fc1")(y))
        y = nn.sigmoid(Dense(x.shape[-1], self.dtype, kernel, name="fc2")(y))
        return x * y[:, None, None]


class Bottleneck(nn.Module):
    """relu(shortcut + conv3(se(conv2(conv1(x))))); a shortcut to another shape is projected."""

    cfg: Any
    shape: StageShape
    stride: int
    drop_path_rate: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        cfg, train, (_, width, inner, _, groups) = self.cfg, self.train, self.shape
        squeeze_dim = round(getattr(cfg, "se_ratio", 0) * x.shape[-1])
        y = ConvNorm(inner, 1, cfg, train, name="conv1")(x)
        y = ConvNorm(inner, 3, cfg, train, self.stride, groups, name="conv2")(y)
        if squeeze_dim:
            y = SqueezeExcite(squeeze_dim, compute_dtype(cfg), name="se")(y)
        last = {"linear": True, "zero_scale": cfg.zero_init_last}
        y = ConvNorm(width, 1, cfg, train, **last, name="conv3")(y)
        if self.drop_path_rate and train:
            y = drop_path(y, self.drop_path_rate, self.make_rng("dropout"))
        if x.shape[-1] != width or self.stride != 1:
            x = ConvNorm(width, 1, cfg, train, self.stride, linear=True, name="downsample")(x)
        return constrain(nn.relu(x + y), BATCH_AXES)


class Stage(nn.Module):
    """Blocks of one shape, one for each rate of stochastic depth; the first has the stride."""

    cfg: Any
    shape: StageShape
    drop_path_rates: tuple[float, ...]
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        block = remat(Bottleneck, self.cfg.remat)
        for j, rate in enumerate(self.drop_path_rates):
            stride = 1 if j else self.shape.stride
            x = block(self.cfg, self.shape, stride, rate, self.train, name=f"block{j}")(x)
        return x


def apply_stages(
    cfg: Any, shapes: Sequence[StageShape], x: Float[Array, "B H W C"], train: bool
) -> Float[Array, "B P Q F"]:
    """Apply "stage0", "stage1" ... of the calling module, each block with its rate."""
    depth = sum(shape.depth for shape in shapes)
    rates = drop_path_rates(cfg.drop_path_rate, depth, DropPathRule.LINEAR).tolist()
    for i, shape in enumerate(shapes):
        own, rates = tuple(rates[: shape.depth]), rates[shape.depth :]
        x = Stage(cfg, shape, own, train, name=f"stage{i}")(x)
    return x


def classify_map(
    module: nn.Module, cfg: Any, x: Float[Array, "B H W C"], kernel_init: Initializer, train: bool
) -> Output:
    """Return the output of a network without tokens from its last map."""
    record(module, "map", lambda: x)
    features: jax.Array = x.mean(axis=(1, 2), dtype=jnp.float32)
    y = Dropout(getattr(cfg, "dropout_rate", 0.0), deterministic=not train)(features)
    return Output(logits=classifier(cfg, kernel_init)(y), features=features, tokens=None)
