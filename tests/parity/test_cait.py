# SPDX-License-Identifier: Apache-2.0
"""CaiT at random configs against timm: logits, tokens and the gradient of every weight."""

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
from vit_jax.models import CaiTConfig
from vit_jax.models.layers.mlp import Gelu


@st.composite
def caits(draw: st.DrawFn) -> CaiTConfig:
    heads, patch = draw(st.integers(1, 5)), draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dim = heads * draw(st.integers(2, 12))
    return CaiTConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch=patch,
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        dim=dim,
        depth=draw(st.integers(1, 3)),
        num_heads=heads,
        mlp_dim=int(dim * draw(st.sampled_from([0.5, 2.572, 4.0]))),
        token_depth=draw(st.integers(1, 3)),
        token_mlp_dim=int(dim * draw(st.sampled_from([0.5, 1.3, 4.0]))),
        qkv_bias=draw(st.booleans()),
        gelu=draw(st.sampled_from([Gelu.ERF, Gelu.TANH])),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        scan_unroll=1,
    )


def build(cfg: CaiTConfig) -> "torch.nn.Module":
    form = "tanh" if cfg.gelu is Gelu.TANH else "none"
    return timm.models.Cait(
        img_size=cfg.image_size,
        patch_size=cfg.patch,
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        embed_dim=cfg.dim,
        depth=cfg.depth,
        num_heads=cfg.num_heads,
        mlp_ratio=(cfg.mlp_dim + 0.5) / cfg.dim,
        qkv_bias=cfg.qkv_bias,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=cfg.norm_eps),
        act_layer=functools.partial(torch.nn.GELU, approximate=form),
        init_values=cfg.layer_scale,
        depth_token_only=cfg.token_depth,
        mlp_ratio_token_only=(cfg.token_mlp_dim + 0.5) / cfg.dim,
    )


@random_configs
@given(caits(), st.integers(0, 2**16))
def test_random_configs_equal_timm(cfg: CaiTConfig, seed: int) -> None:
    model, image = build(cfg), images(cfg, seed)
    out = check_forward(model, cfg, seed, image)
    with torch.no_grad():
        tokens = model.forward_features(to_torch(image)).numpy()
    np.testing.assert_allclose(out.tokens, tokens, atol=TOLERANCE, rtol=0)


def test_gradients_equal_timm() -> None:
    cfg = CaiTConfig(
        image_size=(8, 12),
        patch=(4, 3),
        num_classes=5,
        dim=24,
        depth=2,
        num_heads=3,
        mlp_dim=48,
        token_mlp_dim=36,
        scan_unroll=1,
    )
    check_gradients(build(cfg), cfg)
