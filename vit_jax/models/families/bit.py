# SPDX-License-Identifier: Apache-2.0
"""The pre-activation ResNet (arXiv:1603.05027): BiT's (arXiv:1912.11370) and the plain one.

BiT has GroupNorm and weight-standardised convolutions.
"""

import dataclasses

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.conv import resnet
from vit_jax.models.conv.conv import Padding, WeightStd
from vit_jax.models.layers.init import Init, Initializer
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class BiTConfig(ModelConfig):
    """A BiT ResNet; the defaults are BiT-R50x1 of google-research/big_transfer.

    It accepts images of any size: the stem's convolution and pool and every stage but the first
    halve it, rounding up.

    Attributes:
        depths: bottleneck blocks of each stage.
        widths: output channels of each stage.
        stem_width: channels of the stem.
        width_factor: multiplies all of these widths, which are then rounded to multiples of 8.
        norm: `group`, BiT's, standardises the convolutions' weights; `batch` does not.
        num_groups, conv_eps: for `group`: the GroupNorms' groups, and what is added to a kernel's
            variance to standardise it (timm: 1e-8).
        padding: of the convolutions and the stem's pool.
        init: the code whose rules initialise the weights: `jax` (big_vision) or `timm`.
    """

    depths: tuple[int, ...] = value((3, 4, 6, 3), least=1)
    widths: tuple[int, ...] = value((256, 512, 1024, 2048), least=1)
    stem_width: int = value(64, least=1)
    width_factor: int = value(1, least=1)
    norm: resnet.Norm = resnet.Norm.GROUP
    norm_eps: float = 1e-5
    num_groups: int = value(32, least=1)
    conv_eps: float = 1e-10
    padding: Padding = Padding.FIXED
    init: Init = Init.JAX
    zero_head: bool = True


_HEAD_INIT: dict[Init, Initializer] = {
    Init.JAX: nn.initializers.lecun_normal(),
    Init.TIMM: nn.initializers.normal(0.01),
}


def validate(cfg: BiTConfig) -> None:
    """Raise UserError for fields that do not go together."""
    base.pair(cfg.image_size, "image_size")
    if not cfg.depths or len(cfg.depths) != len(cfg.widths):
        raise UserError(
            f"model.depths={cfg.depths} and model.widths={cfg.widths} need a number for each stage"
        )
    odd = resnet.ungrouped(*_widths(cfg), cfg.num_groups)
    if cfg.norm is resnet.Norm.GROUP and odd:
        raise UserError(
            f"model.num_groups={cfg.num_groups} does not divide the channels {odd} that follow "
            f"from model.stem_width={cfg.stem_width}, widths={cfg.widths} and "
            f"width_factor={cfg.width_factor}"
        )
    if cfg.init not in _HEAD_INIT:
        raise UserError(f"model.init={cfg.init} is for transformers; choose jax or timm")


def _widths(cfg: BiTConfig) -> tuple[int, list[int]]:
    """Return the channels of the stem and of each stage."""
    widths = (w * cfg.width_factor for w in (cfg.stem_width, *cfg.widths))
    stem, *stages = map(resnet.round_channels, widths)
    return stem, stages


class PreActBottleneck(nn.Module):
    """x + conv3(act(conv2(act(conv1(act(x)))))), where act is norm and ReLU.

    In the first block of a stage the projection of act(x) replaces the summand x.
    """

    width: int
    stride: int
    is_first: bool
    layers: resnet.ConvLayers

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        layers, inner = self.layers, resnet.bottleneck(self.width)
        y = nn.relu(layers.norm("norm1")(x))
        if self.is_first:
            sizes = (self.width, self.stride, layers)
            x = resnet.Projection(*sizes, has_norm=False, name="downsample")(y)
        y = layers.conv(inner, 1, 1, "conv1")(y)
        y = nn.relu(layers.norm("norm2")(y))
        y = layers.conv(inner, 3, self.stride, "conv2")(y)
        y = nn.relu(layers.norm("norm3")(y))
        y = layers.conv(self.width, 1, 1, "conv3")(y)
        return constrain(x + y, BATCH_AXES)


class BiT(nn.Module):
    """BiT over [B, H, W, C] images, already normalised; it has no tokens."""

    cfg: BiTConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg = self.cfg
        base.check_input(image, base.pair(cfg.image_size, "image_size"), cfg.channels)
        weight_std = WeightStd(cfg.conv_eps) if cfg.norm is resnet.Norm.GROUP else None
        convs = (cfg.padding, weight_std, resnet.CONV_INIT[cfg.init])
        norms = (cfg.norm, cfg.norm_eps, cfg.num_groups)
        layers = resnet.ConvLayers(*convs, *norms, base.compute_dtype(cfg), train)
        sizes = (cfg.depths, *_widths(cfg))
        x = resnet.make_map(layers, PreActBottleneck, cfg.remat, image, *sizes, stem_norm=False)
        x = nn.relu(layers.norm("norm")(x))
        return resnet.classify_map(self, cfg, x, _HEAD_INIT[cfg.init], train)


_VARIANTS: dict[str, BiTConfig] = facts.variants(BiTConfig)
_ARCHITECTURES = {
    (_VARIANTS[f"bit_r{size}"].depths, int(size[-1])): f"resnetv2_{size}_bit"
    for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
}


def _timm(cfg: BiTConfig) -> facts.Timm:
    args = facts.timm_args(cfg, channels="widths", stem_chs="stem_width")
    fixed = {"norm_eps": 1e-5}
    if cfg.norm is resnet.Norm.BATCH:
        args |= facts.timm_args(cfg, "width_factor", layers="depths")
        return facts.Timm("resnetv2_50", args, {**fixed, "padding": Padding.SYMMETRIC}, "stem/conv")
    sizes = {"depths": cfg.depths, "width_factor": cfg.width_factor}
    fixed |= {"conv_eps": 1e-8, "num_groups": 32, "padding": Padding.FIXED}
    name = facts.architecture("BiT", _ARCHITECTURES, **sizes)
    return facts.Timm(name, args, fixed, "stem/conv")


FAMILY = facts.Family(
    config=BiTConfig,
    module=BiT,
    variants=_VARIANTS,
    stem="stem/conv",
    validate=validate,
    images=lambda cfg: facts.Images(facts.HALF, 1.0, bilinear=True),
    timm=_timm,
    timm_names=lambda cfg: facts.names("BiT", "timm"),
    timm_convolutions=lambda cfg: r"^head/kernel$",
    google=facts.Google(
        facts.names("BiT", "google"),
        stem="root_block/standardized_conv2d/kernel",
        prefixes=("resnet/",),
        head_is_convolution=True,
    ),
)
