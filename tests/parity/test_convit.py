# SPDX-License-Identifier: Apache-2.0
"""ConViT at random configs against timm: logits, tokens and the gradient of every weight."""

import dataclasses
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
from vit_jax.models import ConViTConfig


@st.composite
def convits(draw: st.DrawFn) -> ConViTConfig:
    heads, patch = draw(st.integers(1, 6)), draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    side, head_dim = draw(st.integers(1, 5)), draw(st.integers(2, 8))
    depth = draw(st.integers(1, 4))
    return ConViTConfig(
        image_size=(side * patch[0], side * patch[1]),
        patch=patch,
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        depth=depth,
        num_heads=heads,
        head_dim=head_dim,
        mlp_dim=int(heads * head_dim * draw(st.sampled_from([0.5, 2.572, 4.0]))),
        # From none to all of the blocks, and beyond.
        local_up_to_layer=draw(st.integers(0, depth + 1)),
        qkv_bias=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        scan_unroll=1,
    )


def build(cfg: ConViTConfig) -> "torch.nn.Module":
    return timm.models.ConVit(
        img_size=cfg.image_size,
        patch_size=cfg.patch,
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.head_dim,
        depth=cfg.depth,
        num_heads=cfg.num_heads,
        mlp_ratio=(cfg.mlp_dim + 0.5) / cfg.dim,
        qkv_bias=cfg.qkv_bias,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=cfg.norm_eps),
        local_up_to_layer=cfg.local_up_to_layer,
        locality_strength=cfg.locality_strength,
    )


def check_tokens(cfg: ConViTConfig, seed: int) -> None:
    model, image = build(cfg), images(cfg, seed)
    out = check_forward(model, cfg, seed, image)
    with torch.no_grad():
        tokens = model.forward_features(to_torch(image)).numpy()
    np.testing.assert_allclose(out.tokens, tokens, atol=TOLERANCE, rtol=0)


@random_configs
@given(convits(), st.integers(0, 2**16))
def test_random_configs_equal_timm(cfg: ConViTConfig, seed: int) -> None:
    check_tokens(cfg, seed)


TINY = ConViTConfig(
    image_size=(12, 9),
    patch=(4, 3),
    num_classes=5,
    depth=2,
    num_heads=5,
    head_dim=4,
    mlp_dim=40,
    local_up_to_layer=1,
    scan_unroll=1,
)


@pytest.mark.parametrize("local", [0, 2, 5])
def test_no_or_only_local_blocks_equal_timm(local: int) -> None:
    check_tokens(dataclasses.replace(TINY, local_up_to_layer=local), seed=local)


def test_gradients_equal_timm() -> None:
    check_gradients(build(TINY), TINY)
