# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt at random configs against timm: logits and the gradient of every weight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import check_forward, check_gradients, random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.models import ConvNeXtConfig
from vit_jax.models.families.convnext import FAMILY, ChannelNorm, ConvStem
from vit_jax.models.layers.mlp import Gelu


@st.composite
def convnexts(draw: st.DrawFn) -> ConvNeXtConfig:
    norm_first, side = draw(st.booleans()), st.integers(32, 71)
    eps = draw(st.sampled_from([1e-6, 1e-5]))
    return ConvNeXtConfig(
        image_size=(draw(side), draw(side)),
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        depths=tuple(draw(st.integers(1, 2)) for _ in range(4)),
        widths=tuple(draw(st.integers(4, 20)) for _ in range(4)),
        stem=draw(st.sampled_from(ConvStem)),
        norm=draw(st.sampled_from(ChannelNorm)),
        gelu=draw(st.sampled_from([Gelu.ERF, Gelu.TANH])),
        grn=draw(st.booleans()),
        layer_scale=draw(st.sampled_from([0.0, 0.1])),
        norm_first=norm_first,
        pre_logits_dim=0 if norm_first else draw(st.sampled_from([0, 7])),
        conv_mlp=draw(st.booleans()),
        norm_eps=eps,
        head_norm_eps=eps,
        scan_unroll=1,
    )


def build(cfg: ConvNeXtConfig) -> "torch.nn.Module":
    sizes = {"num_classes": cfg.num_classes, "in_chans": cfg.channels}
    # As the architecture, not the class, has it where it has no LayerScale.
    own = FAMILY.timm(cfg).args
    return timm.models.ConvNeXt(**{"ls_init_value": None, **own}, **sizes)


_SIZES = {"depths": (1, 2, 1, 1), "widths": (8, 12, 12, 20), "num_classes": 5, "scan_unroll": 1}
# An odd rest in every stage, and all that a block may have.
UNEVEN = ConvNeXtConfig(
    **_SIZES, image_size=(58, 46), grn=True, layer_scale=0.3, pre_logits_dim=6, conv_mlp=True
)
NORM_FIRST = ConvNeXtConfig(
    **_SIZES, image_size=(41, 54), stem=ConvStem.OVERLAP_TIERED, layer_scale=0.3, norm_first=True
)


@random_configs
@given(convnexts(), st.integers(0, 2**16))
def test_random_configs_equal_timm(cfg: ConvNeXtConfig, seed: int) -> None:
    check_forward(build(cfg), cfg, seed)


@pytest.mark.parametrize("cfg", [UNEVEN, NORM_FIRST], ids=["uneven", "norm first"])
def test_gradients_equal_timm(cfg: ConvNeXtConfig) -> None:
    check_gradients(build(cfg), cfg)


def test_rates_of_stochastic_depth_are_timms() -> None:
    cfg = ConvNeXtConfig(**_SIZES, drop_path_rate=0.4)
    rates = [
        module.drop_prob
        for module in timm.models.ConvNeXt(
            depths=cfg.depths, dims=cfg.widths, drop_path_rate=0.4
        ).modules()
        if type(module).__name__ == "DropPath"
    ]
    np.testing.assert_allclose(rates, np.linspace(0, 0.4, 5)[1:], rtol=1e-6)
