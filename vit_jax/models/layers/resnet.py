# SPDX-License-Identifier: Apache-2.0
"""What the bottleneck ResNets share: their layers, projection shortcut, stages and widths."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.batch_norm import BatchNorm
from vit_jax.models.layers.conv import Padding, StdConv, WeightStd
from vit_jax.models.layers.group_norm import GroupNorm
from vit_jax.models.layers.grouped_conv import kaiming_normal
from vit_jax.models.layers.init import Init, Initializer

# The scale of a standardised weight says nothing of what it computes, but how fast it turns.
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
class Layers:
    """Makes the convolutions and norms of one network, which are all alike.

    Attributes:
        padding, weight_std, kernel_init: of the convolutions.
        norm_kind, norm_eps: which norm.
        num_groups: of a GroupNorm.
        dtype: what all of them compute in; statistics are float32.
        train: a BatchNorm takes its statistics from the batch and updates the running ones.
    """

    padding: Padding
    weight_std: WeightStd | None
    kernel_init: Initializer
    norm_kind: Norm
    norm_eps: float
    num_groups: int
    dtype: Any
    train: bool

    def conv(self, features: int, kernel_size: int, stride: int, name: str) -> StdConv:
        """Create a square convolution."""
        return StdConv(
            features,
            kernel_size,
            stride,
            self.padding,
            self.weight_std,
            self.kernel_init,
            self.dtype,
            name=name,
        )

    def norm(self, name: str, scale_init: Initializer = nn.initializers.ones) -> nn.Module:
        """Create a norm, which computes the variance in two passes."""
        if self.norm_kind is Norm.BATCH:
            return BatchNorm(self.norm_eps, self.dtype, self.train, scale_init, name=name)
        return GroupNorm(self.num_groups, self.norm_eps, self.dtype, scale_init, name=name)


class Projection(nn.Module):
    """The shortcut of a stage's first block: a strided 1x1 convolution, and its norm if any."""

    width: int
    stride: int
    layers: Layers
    has_norm: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        x = self.layers.conv(self.width, 1, self.stride, "conv")(x)
        return self.layers.norm("norm")(x) if self.has_norm else x


class Stage(nn.Module):
    """Blocks of one width; the first has the stride and the projection.

    `block` has the fields width, stride, is_first and layers.
    """

    block: type[nn.Module]
    depth: int
    width: int
    stride: int
    layers: Layers

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        for j in range(self.depth):
            stride = self.stride if j == 0 else 1
            x = self.block(self.width, stride, j == 0, self.layers, name=f"block{j}")(x)
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
