# SPDX-License-Identifier: Apache-2.0
"""A model of every family small enough to train in a test, and how to shrink any config to one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from vit_jax import models
from vit_jax.models import (
    BiTConfig,
    CaiTConfig,
    ConViTConfig,
    ConvNeXtConfig,
    HieraConfig,
    HybridConfig,
    MixerConfig,
    RegNetConfig,
    ResNetConfig,
    SwinConfig,
    ViTConfig,
)
from vit_jax.models.layers.block import BlockConfig
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu

# By family: the fields that cut a config to a few thousand parameters and keep its choices.
# `image_size` is the smallest that the shrunk model takes with more than one token or pixel left.
SHRINK: dict[type, Callable[[Any], dict[str, Any]]] = {
    ViTConfig: lambda cfg: {
        "dim": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 32,
        "pre_logits_dim": 16 if cfg.pre_logits_dim else 0,
        "drawn_patches": (cfg.patch[0] // 2, cfg.patch[0]) if cfg.drawn_patches else (),
        "image_size": tuple(2 * side for side in cfg.patch),
    },
    HybridConfig: lambda cfg: {
        **SHRINK[ViTConfig](cfg),
        "backbone_depths": (1,) * min(len(cfg.backbone_depths), 2),
        "backbone_widths": (16, 32)[: len(cfg.backbone_depths)],
        "stem_width": 8,
        "num_groups": 4,
        "image_size": tuple(16 * side for side in cfg.patch),  # 2 or, of a stem alone, 4 patches
    },
    BiTConfig: lambda cfg: {
        "depths": (1, 2),
        "widths": (16, 32),
        "stem_width": 8,
        "num_groups": 4,
        "image_size": (32, 32),  # on fewer pixels ReLU and pool amplify bfloat16's rounding
    },
    CaiTConfig: lambda cfg: {
        "dim": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 32,
        "token_depth": 1,
        "token_mlp_dim": 32,
        "image_size": tuple(2 * side for side in cfg.patch),
    },
    ConViTConfig: lambda cfg: {
        "depth": 2,
        "num_heads": 2,
        "head_dim": 8,
        "mlp_dim": 32,
        "local_up_to_layer": min(cfg.local_up_to_layer, 1),
        "image_size": tuple(2 * side for side in cfg.patch),
    },
    ResNetConfig: lambda cfg: {
        "depths": (1, 1),
        "widths": (16, 32),
        "stem_width": 8,
        "image_size": (16, 16),
    },
    RegNetConfig: lambda cfg: {
        "depth": 2,  # of two stages, 8 and 16 channels wide
        "w0": 8,
        "wa": 8.0,
        "wm": 2.0,
        "group_width": 8,
        "stem_width": 8,
        "image_size": (16, 16),
    },
    SwinConfig: lambda cfg: {
        "dim": 8,
        "depths": (2, 1),
        "num_heads": (2, 2),
        "window": (3,),  # neither grid is a multiple
        "image_size": tuple(5 * side for side in cfg.patch),
    },
    ConvNeXtConfig: lambda cfg: {
        "depths": (1, 2),
        "widths": (8, 16),
        "layer_scale": 0.1 if cfg.layer_scale else 0.0,  # as published, no branch is heard
        "pre_logits_dim": 16 if cfg.pre_logits_dim else 0,
        "image_size": (18, 18),  # a rest, which no patch covers
    },
    HieraConfig: lambda cfg: {
        "dim": 8,
        "depths": (1, 2),
        "num_heads": (2, 4),
        "local_stages": 1,
        "image_size": (4 * cfg.stem_stride,) * 2,
    },
    MixerConfig: lambda cfg: {
        "dim": 16,
        "depth": 2,
        "token_mlp_dim": 8,
        "channel_mlp_dim": 32,
        "image_size": tuple(2 * side for side in cfg.patch),
    },
}


def shrink(cfg: models.ModelConfig, **overrides: Any) -> Any:
    """Return a copy of any family's config at its smallest, with `overrides`."""
    fields = {"num_classes": 3, "scan_unroll": 1, **SHRINK[type(cfg)](cfg), **overrides}
    return dataclasses.replace(cfg, **fields)


# One config a family, by its file's name in vit_jax/models.
TINY: dict[str, models.ModelConfig] = {
    "vit": shrink(models.variant("vit_b16", patch=(4, 4)), zero_head=False),
    "deit": shrink(models.variant("deit_ti16_distilled", patch=(4, 4))),
    "cait": shrink(models.variant("cait_xxs24", patch=(4, 4)), layer_scale=0.1),
    "convit": shrink(models.variant("convit_ti", patch=(4, 4))),
    "regnet": shrink(models.variant("regnety_200mf")),
    "resnet": shrink(models.variant("resnet50")),
    "swin": shrink(models.variant("swin_t")),
    "hiera": shrink(models.variant("hiera_t")),
    "mixer": shrink(models.variant("mixer_b16", patch=(4, 4)), zero_head=False),
    "hybrid": shrink(models.variant("r50_vit_b16"), zero_head=False),
    "bit": shrink(models.variant("bit_r50x1"), zero_head=False),
    "convnext": shrink(models.variant("convnext_t"), grn=True),
}


def block_config(**fields: Any) -> BlockConfig:
    """Return what a layer is built with that is tested by itself."""
    rest = {"mlp_dim": 16, "gelu": Gelu.TANH, "norm_eps": 1e-6, "dtype": jnp.float32}
    return BlockConfig(**{**rest, "init": Init.TIMM, "qkv_bias": True, **fields})
