# SPDX-License-Identifier: Apache-2.0
"""ResNet against timm (and so torchvision, whose names and numerics are the same)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parity.harness import check_forward, check_gradients, random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.models.families.resnet import ResNetConfig


def timm_model(cfg: ResNetConfig) -> "torch.nn.Module":
    return timm.models.resnet.ResNet(
        timm.models.resnet.Bottleneck,
        cfg.depths,
        num_classes=cfg.num_classes,
        in_chans=cfg.channels,
        stem_width=cfg.stem_width,
        channels=tuple(width // 4 for width in cfg.widths),
    )


@st.composite
def configs(draw: st.DrawFn) -> ResNetConfig:
    side = st.integers(17, 70)
    width = st.sampled_from((8, 16, 20, 24, 32))
    return ResNetConfig(
        # timm has four stages, and a stem as wide as its first block expects: 64.
        depths=tuple(draw(st.integers(1, 2)) for _ in range(4)),
        widths=tuple(draw(width) for _ in range(4)),
        image_size=(draw(side), draw(side)),
        channels=draw(st.sampled_from((1, 3))),
        num_classes=draw(st.integers(2, 9)),
    )


@settings(random_configs, max_examples=4)
@given(cfg=configs(), seed=st.integers(0, 99))
def test_logits(cfg: ResNetConfig, seed: int) -> None:
    check_forward(timm_model(cfg), cfg, seed)


def test_gradients() -> None:
    cfg = ResNetConfig(
        depths=(2, 1, 1, 1), widths=(8, 16, 16, 24), image_size=(37, 45), num_classes=5
    )
    check_gradients(timm_model(cfg), cfg)
