# SPDX-License-Identifier: Apache-2.0
"""The pre-activation ResNet (arXiv:1603.05027): BiT's (arXiv:1912.11370) and the plain one.

BiT has GroupNorm and weight-standardised convolutions. Sizes: google-research/big_transfer, and
between them; `resnetv2_*` are timm's with BatchNorm.
"""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.fields import value
from vit_jax.models.base import (
    ModelConfig,
    Output,
    check_input,
    compute_dtype,
    pair,
)
from vit_jax.models.layers.capture import record
from vit_jax.models.layers.conv import Padding, WeightStd, max_pool
from vit_jax.models.layers.head import classifier
from vit_jax.models.layers.init import Init, Initializer
from vit_jax.models.layers.resnet import (
    CONV_INIT,
    Layers,
    Norm,
    Projection,
    Stage,
    bottleneck,
    round_channels,
    ungrouped,
)
from vit_jax.models.layers.stack import remat
from vit_jax.sharding import BATCH_AXES, constrain


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class BiTConfig(ModelConfig):
    """A BiT ResNet; the defaults are BiT-R50x1 of google-research/big_transfer.

    It takes images of any size: the stem's convolution and pool and every stage but the first
    halve it, rounding up.

    Attributes:
        depths: bottleneck blocks of each stage.
        widths: output channels of each stage.
        stem_width: channels of the stem.
        width_factor: multiplies all of these widths, which are then rounded to multiples of 8.
        norm: with `group`, BiT's, the convolutions are weight-standardised; with `batch` not.
        norm_eps: of the norms.
        num_groups, conv_eps: of `group`: the GroupNorms' groups, and what is added to a kernel's
            variance when it is standardised (timm: 1e-8).
        padding: how the border is seen.
        init: whose initial weights, `jax` (big_vision) or `timm`.
    """

    depths: tuple[int, ...] = value((3, 4, 6, 3), least=1)
    widths: tuple[int, ...] = value((256, 512, 1024, 2048), least=1)
    stem_width: int = value(64, least=1)
    width_factor: int = value(1, least=1)
    norm: Norm = Norm.GROUP
    norm_eps: float = 1e-5
    num_groups: int = value(32, least=1)
    conv_eps: float = 1e-10
    padding: Padding = Padding.FIXED
    init: Init = Init.JAX
    zero_head: bool = True


DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
VARIANTS: dict[str, BiTConfig] = {
    f"bit_r{layers}x{factor}": BiTConfig(depths=depths, width_factor=factor)
    for layers, depths in DEPTHS.items()
    for factor in (1, 2, 3, 4)
} | {
    f"resnetv2_{layers}": BiTConfig(
        depths=depths,
        norm=Norm.BATCH,
        padding=Padding.SYMMETRIC,
        init=Init.TIMM,
        zero_head=False,
    )
    for layers, depths in DEPTHS.items()
}
_HEAD_INIT: dict[Init, Initializer] = {
    Init.JAX: nn.initializers.lecun_normal(),
    Init.TIMM: nn.initializers.normal(0.01),
}


def validate(cfg: BiTConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    pair(cfg.image_size, "image_size")
    if not cfg.depths or len(cfg.depths) != len(cfg.widths):
        raise UserError(
            f"model.depths={cfg.depths} and model.widths={cfg.widths} need a number for each stage"
        )
    odd = ungrouped(*_widths(cfg), cfg.num_groups)
    if cfg.norm is Norm.GROUP and odd:
        raise UserError(
            f"model.num_groups={cfg.num_groups} does not divide the channels {odd} that follow "
            f"from model.stem_width={cfg.stem_width}, widths={cfg.widths} and "
            f"width_factor={cfg.width_factor}"
        )
    if cfg.init not in _HEAD_INIT:
        raise UserError(f"model.init={cfg.init} is for transformers; choose jax or timm")


def _widths(cfg: BiTConfig) -> tuple[int, list[int]]:
    """Return the channels of the stem and of each stage."""
    stem, *stages = (round_channels(w * cfg.width_factor) for w in (cfg.stem_width, *cfg.widths))
    return stem, stages


class Bottleneck(nn.Module):
    """x + conv3(act(conv2(act(conv1(act(x)))))), where act is norm and ReLU.

    In the first block of a stage the projection of act(x) takes the place of x in the sum.
    """

    width: int
    stride: int
    is_first: bool
    layers: Layers

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        layers, inner = self.layers, bottleneck(self.width)
        y = nn.relu(layers.norm("norm1")(x))
        if self.is_first:
            x = Projection(self.width, self.stride, layers, has_norm=False, name="downsample")(y)
        y = layers.conv(inner, 1, 1, "conv1")(y)
        y = nn.relu(layers.norm("norm2")(y))
        y = layers.conv(inner, 3, self.stride, "conv2")(y)
        y = nn.relu(layers.norm("norm3")(y))
        y = layers.conv(self.width, 1, 1, "conv3")(y)
        return constrain(x + y, BATCH_AXES)


class Stem(nn.Module):
    """A 7x7 convolution and a max-pool, each of stride 2, with no activation between."""

    width: int
    layers: Layers

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        x = self.layers.conv(self.width, 7, 2, "conv")(image)
        return max_pool(x, self.layers.padding)


class BiT(nn.Module):
    """BiT over [B, H, W, C] images, already normalised; it has no tokens."""

    cfg: BiTConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg = self.cfg
        check_input(image, pair(cfg.image_size, "image_size"), cfg.channels)
        layers = Layers(
            padding=cfg.padding,
            weight_std=WeightStd(cfg.conv_eps) if cfg.norm is Norm.GROUP else None,
            kernel_init=CONV_INIT[cfg.init],
            norm_kind=cfg.norm,
            norm_eps=cfg.norm_eps,
            num_groups=cfg.num_groups,
            dtype=compute_dtype(cfg),
            train=train,
        )
        stem, widths = _widths(cfg)
        x = constrain(Stem(stem, layers, name="stem")(image), BATCH_AXES)
        block = remat(Bottleneck, cfg.remat)
        for i, (depth, width) in enumerate(zip(cfg.depths, widths, strict=True)):
            x = Stage(block, depth, width, 1 if i == 0 else 2, layers, name=f"stage{i}")(x)
        x = nn.relu(layers.norm("norm")(x))
        record(self, "map", lambda: x)
        features = x.mean(axis=(1, 2), dtype=jnp.float32)
        logits = classifier(cfg, _HEAD_INIT[cfg.init])(features)
        return Output(logits=logits, features=features, tokens=None)
