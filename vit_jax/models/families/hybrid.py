# SPDX-License-Identifier: Apache-2.0
"""Hybrids (arXiv:2010.11929 section 3.1): a Vision Transformer over the feature map of a ResNet.

The ResNet is the post-activation one with GroupNorm and weight-standardised convolutions.
"""

import dataclasses
import enum
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.conv import resnet
from vit_jax.models.conv.conv import Padding, WeightStd
from vit_jax.models.families import vit_family
from vit_jax.models.families.vit import ViT
from vit_jax.models.families.vit_config import ViTConfig, check_transformer
from vit_jax.models.layers.mlp import MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.settings.fields import value


class Standardise(enum.StrEnum):
    """How a kernel is divided by its deviation, which the weights determine."""

    GOOGLE = "google"  # by std + 1e-5: google-research/vision_transformer, for all published ones
    TIMM = "timm"  # by sqrt(var + 1e-8)


_WEIGHT_STD = {Standardise.GOOGLE: WeightStd(1e-5, outside=True), Standardise.TIMM: WeightStd(1e-8)}


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class HybridConfig(ViTConfig):
    """A hybrid; the defaults are R50+ViT-B/16 of google-research/vision_transformer.

    `patch` counts positions of the ResNet's map, whose stride is 4 after the stem and doubles in
    every stage but the first; the map's sides are rounded up.

    Attributes:
        backbone_depths: bottleneck blocks of each stage of the ResNet; () is its stem alone.
        backbone_widths: output channels of each stage, rounded to multiples of 8.
        stem_width: channels of the stem, likewise.
        num_groups, group_norm_eps: of the GroupNorms (timm's eps: 1e-5).
        weight_std: the code whose rule standardises the kernels.
        padding: of the convolutions and the stem's pool.
    """

    patch: tuple[int, ...] = (1, 1)
    backbone_depths: tuple[int, ...] = value((3, 4, 9), least=1)
    backbone_widths: tuple[int, ...] = value((256, 512, 1024), least=1)
    stem_width: int = value(64, least=1)
    num_groups: int = value(32, least=1)
    group_norm_eps: float = 1e-6
    weight_std: Standardise = Standardise.GOOGLE
    padding: Padding = Padding.SAME


def validate(cfg: HybridConfig) -> None:
    """Raise UserError for fields that do not go together."""
    if len(cfg.backbone_depths) != len(cfg.backbone_widths):
        given = f"backbone_depths={cfg.backbone_depths} and backbone_widths={cfg.backbone_widths}"
        raise UserError(f"model.{given} need a number for each stage")
    if cfg.base_patch or cfg.base_grid or cfg.drawn_patches:
        raise UserError(
            "model.base_patch, base_grid and drawn_patches are a plain ViT's",
            field="model.base_patch",
        )
    if cfg.native:
        raise UserError(
            "model.native is a plain ViT's: a hybrid's ResNet sees images of one size",
            field="model.native",
        )
    odd = resnet.ungrouped(*_widths(cfg), cfg.num_groups)
    if odd:
        raise UserError(
            f"model.num_groups={cfg.num_groups} does not divide the channels {odd} that follow "
            f"from model.stem_width={cfg.stem_width} and backbone_widths={cfg.backbone_widths}"
        )
    check_transformer(cfg, token_grid(cfg, base.pair(cfg.image_size, "image_size")))


def _widths(cfg: HybridConfig) -> tuple[int, list[int]]:
    stem, *stages = map(resnet.round_channels, (cfg.stem_width, *cfg.backbone_widths))
    return stem, stages


def token_grid(cfg: HybridConfig, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the token grid (rows, columns) of an image.

    Raises UserError: the patch does not divide the ResNet's map.
    """
    stride = 4 * 2 ** max(len(cfg.backbone_depths) - 1, 0)
    rows, columns = (-(-side // stride) for side in image_size)
    patch = base.pair(cfg.patch, "patch")
    if rows % patch[0] or columns % patch[1]:
        raise UserError(
            f"model.patch={patch} does not divide the {rows}x{columns} map that the ResNet, of "
            f"stride {stride}, makes of model.image_size={image_size}; image_size may be any "
            f"multiples of {(stride * patch[0], stride * patch[1])}"
        )
    return rows // patch[0], columns // patch[1]


class GroupNormBottleneck(nn.Module):
    """relu(x + norm3(conv3(act(conv2(act(conv1(x))))))), where act is norm and ReLU.

    In the first block of a stage the projection of x, with a norm, replaces the summand x.
    """

    width: int
    stride: int
    is_first: bool
    layers: resnet.ConvLayers

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        layers, inner = self.layers, resnet.bottleneck(self.width)
        y = nn.relu(layers.norm("norm1")(layers.conv(inner, 1, 1, "conv1")(x)))
        y = nn.relu(layers.norm("norm2")(layers.conv(inner, 3, self.stride, "conv2")(y)))
        y = layers.conv(self.width, 1, 1, "conv3")(y)
        y = layers.norm("norm3", nn.initializers.zeros)(y)  # the branch starts at zero, as in timm
        if self.is_first:
            sizes = (self.width, self.stride, layers)
            x = resnet.Projection(*sizes, has_norm=True, name="downsample")(x)
        return constrain(nn.relu(x + y), BATCH_AXES)


class Backbone(nn.Module):
    """The ResNet below the transformer: no pooling, no head."""

    cfg: HybridConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"]) -> Float[Array, "B P Q F"]:
        cfg = self.cfg
        convs = (cfg.padding, _WEIGHT_STD[cfg.weight_std], resnet.CONV_INIT[cfg.init])
        norms = (resnet.Norm.GROUP, cfg.group_norm_eps, cfg.num_groups)
        layers = resnet.ConvLayers(*convs, *norms, base.compute_dtype(cfg), train=False)
        sizes = (cfg.backbone_depths, *_widths(cfg))
        return resnet.make_map(
            layers, GroupNormBottleneck, cfg.remat, image, *sizes, stem_norm=True
        )


class Hybrid(ViT):
    """A ViT over patches of a ResNet's map."""

    cfg: HybridConfig

    def _grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        return token_grid(self.cfg, image_size)

    def _patches(self, image: jax.Array, dtype: Any) -> tuple[jax.Array, tuple[int, int]]:
        return super()._patches(Backbone(self.cfg, name="backbone")(image), dtype)


_ARCHITECTURES = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _timm(cfg: HybridConfig) -> facts.Timm:
    name = _ARCHITECTURES.get(cfg.backbone_depths)
    if name is None:
        raise UserError(
            f"timm has no hybrid with model.backbone_depths={cfg.backbone_depths}; it has "
            + ", ".join(map(str, _ARCHITECTURES))
        )
    widths = (256, 512, 1024, 2048)[: len(cfg.backbone_depths)]
    fixed = {"backbone_widths": widths, "stem_width": 64, "num_groups": 32}
    fixed |= {"group_norm_eps": 1e-5, "weight_std": Standardise.TIMM, "padding": Padding.SAME}
    fixed |= {"norm_eps": 1e-6, "distilled": False, "token_merging": 0}
    fixed |= {"norm": TokenNorm.LAYER, "mlp": MlpKind.GELU}
    return facts.Timm(name, vit_family.timm(cfg).args, fixed, first="backbone/stem/conv")


def _timm_lacks(cfg: HybridConfig) -> str:
    if vit_family.is_eva(cfg):
        return "a hybrid with rotary positions, biases of q and v alone or an option of its Eva"
    if cfg.patch_norm or not cfg.proj_bias:
        return "a hybrid with model.patch_norm or without model.proj_bias"
    return vit_family.timm_lacks(cfg)


def _timm_names(cfg: HybridConfig) -> tuple[facts.Rename, ...]:
    # timm has no name for a stem without stages.
    stem = () if cfg.backbone_depths else ((r"^backbone/stem/", "backbone/"),)
    return (*stem, *facts.names("ViT", "timm"), *facts.names("Hybrid", "timm"))


FAMILY = dataclasses.replace(
    vit_family.FAMILY,
    config=HybridConfig,
    module=Hybrid,
    variants=facts.variants(HybridConfig),
    stem="backbone/stem/conv",
    validate=validate,
    grids=lambda cfg, size: [token_grid(cfg, size)],
    images=lambda cfg: facts.Images(facts.HALF, 0.9),
    timm=_timm,
    timm_names=_timm_names,
    timm_lacks=_timm_lacks,
    official_names=(),
    # The ResNet's names before those of the blocks, which have norms too.
    google=facts.Google((*facts.names("Hybrid", "google"), *facts.names("ViT", "google"))),
)
