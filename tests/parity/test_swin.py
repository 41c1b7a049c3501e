# SPDX-License-Identifier: Apache-2.0
"""Swin at random configs against timm: logits, tokens and the gradient of every weight."""

import functools

import numpy as np
import pytest
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
from vit_jax.models import SwinConfig
from vit_jax.models.base import pair
from vit_jax.models.layers.mlp import Gelu


@st.composite
def swins(draw: st.DrawFn) -> SwinConfig:
    stages = draw(st.integers(1, 3))
    heads = tuple(draw(st.sampled_from([1, 2, 3])) for _ in range(stages))
    patch = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    grid = draw(st.tuples(st.integers(2, 13), st.integers(2, 13)))
    side = st.integers(1, 5)
    windows = [st.tuples(side), st.tuples(side, side)]
    windows += [st.tuples(side, side, side)] if stages == 3 else []
    return SwinConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch=patch,
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        dim=6 * draw(st.integers(1, 3)),
        depths=tuple(draw(st.integers(1, 2)) for _ in range(stages)),
        num_heads=heads,
        window=draw(st.one_of(windows)),
        mlp_ratio=draw(st.sampled_from([0.5, 2.3, 4.0])),
        qkv_bias=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
    )


def build(cfg: SwinConfig) -> "torch.nn.Module":
    windows = cfg.window if len(cfg.window) > 2 else pair(cfg.window, "window")
    assert cfg.gelu is Gelu.ERF, "the only one of timm's Swin"
    return timm.models.SwinTransformer(
        img_size=pair(cfg.image_size, "image_size"),
        patch_size=pair(cfg.patch, "patch"),
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.dim,
        depths=cfg.depths,
        num_heads=cfg.num_heads,
        window_size=windows,
        mlp_ratio=cfg.mlp_ratio,
        qkv_bias=cfg.qkv_bias,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=cfg.norm_eps),
    )


# What random draws may miss: windows that neither grid nor image divides, beside an odd grid to
# merge, and an axis that fits into the window beside one that doesn't.
UNEVEN = SwinConfig(
    image_size=(18, 14),
    patch=(2, 2),
    num_classes=3,
    dim=12,
    depths=(2, 2),
    num_heads=(2, 3),
    window=(4, 5),
)
ONE_AXIS = SwinConfig(
    image_size=(12, 32),
    patch=(2, 4),
    num_classes=3,
    dim=12,
    depths=(2,),
    num_heads=(3,),
    window=(7, 3),
)


@random_configs
@given(swins(), st.integers(0, 2**16))
def test_random_configs_equal_timm(cfg: SwinConfig, seed: int) -> None:
    check_forward(build(cfg), cfg, seed)


@pytest.mark.parametrize("cfg", [UNEVEN, ONE_AXIS], ids=["uneven", "one_axis"])
def test_uneven_windows_equal_timm(cfg: SwinConfig) -> None:
    model, image = build(cfg), images(cfg, 0)
    out = check_forward(model, cfg, image=image)
    with torch.no_grad():
        tokens = model.forward_features(to_torch(image)).numpy()
    np.testing.assert_allclose(out.tokens, tokens.reshape(out.tokens.shape), atol=TOLERANCE, rtol=0)


def test_gradients_equal_timm() -> None:
    check_gradients(build(UNEVEN), UNEVEN)
