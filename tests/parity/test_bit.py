# SPDX-License-Identifier: Apache-2.0
"""BiT and the BatchNorm ResNet-v2 at random configs against timm: logits and every gradient."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import check_forward, check_gradients, random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.models import BiTConfig
from vit_jax.models.conv.conv import Padding
from vit_jax.models.conv.resnet import Norm

STEM_TYPES = {Padding.FIXED: "fixed", Padding.SYMMETRIC: "", Padding.SAME: "same"}
side = st.integers(9, 40)


@st.composite
def bits(draw: st.DrawFn) -> BiTConfig:
    stages = draw(st.integers(1, 3))
    return BiTConfig(
        image_size=draw(st.tuples(side, side)),
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        depths=tuple(draw(st.integers(1, 2)) for _ in range(stages)),
        # 44 and 100 are rounded; a quarter of 40 and 48 is.
        widths=tuple(draw(st.sampled_from([8, 32, 40, 44, 48, 100])) for _ in range(stages)),
        stem_width=draw(st.sampled_from([8, 12, 16])),
        width_factor=draw(st.sampled_from([1, 2])),
        norm=draw(st.sampled_from([Norm.GROUP, Norm.GROUP, Norm.BATCH])),
        norm_eps=draw(st.sampled_from([1e-5, 1e-2])),
        num_groups=draw(st.sampled_from([1, 2, 4, 8])),
        conv_eps=draw(st.sampled_from([1e-8, 1e-2])),
        padding=draw(st.sampled_from(Padding)),
    )


def build(cfg: BiTConfig) -> "torch.nn.Module":
    layers = timm.layers
    same = cfg.padding is Padding.SAME
    if cfg.norm is Norm.GROUP:
        conv = layers.StdConv2dSame if same else layers.StdConv2d
        conv = functools.partial(conv, eps=cfg.conv_eps)
        norm = functools.partial(layers.GroupNormAct, num_groups=cfg.num_groups, eps=cfg.norm_eps)
    else:
        conv = functools.partial(layers.create_conv2d, padding="same" if same else "")
        norm = functools.partial(layers.BatchNormAct2d, eps=cfg.norm_eps)
    return timm.models.ResNetV2(
        layers=cfg.depths,
        channels=cfg.widths,
        num_classes=cfg.num_classes,
        in_chans=cfg.channels,
        width_factor=cfg.width_factor,
        stem_chs=cfg.stem_width,
        stem_type=STEM_TYPES[cfg.padding],
        norm_layer=norm,
        conv_layer=conv,
    )


@random_configs
@given(bits())
def test_equals_timm(cfg: BiTConfig) -> None:
    check_forward(build(cfg), cfg)


SMALL = {"image_size": (33, 20), "num_classes": 3, "depths": (1, 2), "widths": (32, 48)}


@pytest.mark.parametrize(
    "cfg",
    [
        BiTConfig(**SMALL, stem_width=16, num_groups=4, conv_eps=1e-2),
        BiTConfig(**SMALL, stem_width=16, norm=Norm.BATCH, padding=Padding.SYMMETRIC),
    ],
    ids=["bit", "resnetv2"],
)
def test_gradients_equal_timm(cfg: BiTConfig) -> None:
    check_gradients(build(cfg), cfg)
