# SPDX-License-Identifier: Apache-2.0
"""Hybrids at random configs against timm: logits, tokens, other image sizes, every gradient."""

import dataclasses
import functools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import (
    TOLERANCE,
    check_forward,
    check_gradients,
    images,
    random_configs,
    to_torch,
)
from tests.parity.torch_models import timm, torch
from vit_jax.models import HybridConfig
from vit_jax.models.base import pair
from vit_jax.models.conv.conv import Padding
from vit_jax.models.families.hybrid import Standardise
from vit_jax.models.layers.mlp import Gelu


def config(**fields: object) -> HybridConfig:
    """Fill in what timm can only be, and small sizes."""
    base = {
        "num_classes": 3,
        "dim": 16,
        "depth": 1,
        "num_heads": 2,
        "mlp_dim": 32,
        "stem_width": 16,
        "num_groups": 4,
        "gelu": Gelu.ERF,
        "weight_std": Standardise.TIMM,
    }
    return HybridConfig(**{**base, **fields})


@st.composite
def hybrids(draw: st.DrawFn) -> HybridConfig:
    stages = draw(st.integers(0, 2))
    patch = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    stride = 4 * 2 ** max(stages - 1, 0)
    # As many columns as the patch needs, of images that the stride need not divide.
    grid = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    short = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    height, width = (g * p * stride - s for g, p, s in zip(grid, patch, short, strict=True))
    return config(
        image_size=(height, width),
        channels=draw(st.sampled_from([1, 3])),
        patch=patch,
        depth=draw(st.integers(1, 2)),
        backbone_depths=tuple(draw(st.integers(1, 2)) for _ in range(stages)),
        backbone_widths=tuple(draw(st.sampled_from([16, 32, 44, 48])) for _ in range(stages)),
        stem_width=draw(st.sampled_from([8, 12, 16])),
        num_groups=draw(st.sampled_from([1, 2, 4, 8])),
        group_norm_eps=draw(st.sampled_from([1e-6, 1e-2])),
        padding=draw(st.sampled_from([Padding.SAME, Padding.SYMMETRIC])),
        pos_embed_prefix=draw(st.booleans()),
        layer_scale=draw(st.sampled_from([0.0, 0.1])),
    )


def build(cfg: HybridConfig) -> "torch.nn.Module":
    layers, resnetv2 = timm.layers, timm.models.resnetv2
    same = cfg.padding is Padding.SAME
    shared = {
        "stem_type": "same" if same else "",
        "preact": False,
        "conv_layer": functools.partial(
            layers.StdConv2dSame if same else layers.StdConv2d, eps=1e-8
        ),
        "norm_layer": functools.partial(
            layers.GroupNormAct, num_groups=cfg.num_groups, eps=cfg.group_norm_eps
        ),
    }
    if cfg.backbone_depths:
        backbone = resnetv2.ResNetV2(
            layers=cfg.backbone_depths,
            channels=cfg.backbone_widths,
            num_classes=0,
            in_chans=cfg.channels,
            global_pool="",
            stem_chs=cfg.stem_width,
            **shared,
        )
    else:
        # The rounding is the ResNet's, not its stem's.
        width = layers.make_divisible(cfg.stem_width)
        backbone = resnetv2.create_resnetv2_stem(cfg.channels, width, **shared)
    return timm.models.VisionTransformer(
        img_size=pair(cfg.image_size, "image_size"),
        patch_size=pair(cfg.patch, "patch"),
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.dim,
        depth=cfg.depth,
        num_heads=cfg.num_heads,
        mlp_ratio=cfg.mlp_dim / cfg.dim,
        init_values=cfg.layer_scale or None,
        no_embed_class=not cfg.pos_embed_prefix,
        dynamic_img_size=cfg.dynamic_image_size,
        embed_layer=functools.partial(layers.HybridEmbed, backbone=backbone),
    )


@random_configs
@given(hybrids())
def test_equals_timm(cfg: HybridConfig) -> None:
    check_forward(build(cfg), cfg)


TWO_STAGES = config(
    image_size=(30, 40), patch=(1,), backbone_depths=(1, 2), backbone_widths=(32, 48)
)


def test_other_image_sizes_equal_timm() -> None:
    cfg = dataclasses.replace(TWO_STAGES, dynamic_image_size=True)
    model, image = build(cfg), images(dataclasses.replace(cfg, image_size=(56, 23)), seed=3)
    out = check_forward(model, cfg, image=image)
    with torch.no_grad():
        tokens = model.forward_features(to_torch(image)).numpy()
    assert tokens.shape == (2, 1 + 7 * 3, 16)
    np.testing.assert_allclose(out.tokens, tokens, atol=TOLERANCE, rtol=0)


def test_gradients_equal_timm() -> None:
    check_gradients(build(TWO_STAGES), TWO_STAGES)
