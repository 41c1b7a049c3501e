# SPDX-License-Identifier: Apache-2.0
"""ViT and DeiT at random configs against timm: logits, and the gradient of every weight."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import check_forward, check_gradients, random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.models import ViTConfig
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool

_POOLS = {Pool.CLS: "token", Pool.GAP: "avg", Pool.MAP: "map"}


@st.composite
def vits(draw: st.DrawFn) -> ViTConfig:
    heads, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    patch = draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dim = heads * 4 * draw(st.integers(1, 4))
    pool, pre_norm = draw(st.sampled_from(list(_POOLS))), draw(st.booleans())
    return ViTConfig(
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch=patch,
        channels=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 5)),
        dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_dim=int(dim * draw(st.sampled_from([0.5, 2.572, 4.0]))),
        pool=pool,
        fc_norm=pool is Pool.GAP and draw(st.booleans()),
        pool_prefix=pool is not Pool.CLS and draw(st.booleans()),
        class_token=pool is Pool.CLS or draw(st.booleans()),
        num_registers=draw(st.integers(0, 2)),
        pos_embed_prefix=draw(st.booleans()),
        pre_norm=pre_norm,
        patch_bias=not pre_norm,  # timm ties the two
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        layer_scale=draw(st.sampled_from([0.0, 0.1])),
        gelu=draw(st.sampled_from(list(Gelu))),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        init=Init.TIMM,
    )


def build(cfg: ViTConfig) -> "torch.nn.Module":
    acts = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_tanh", Gelu.QUICK: "quick_gelu"}
    common = {
        "img_size": cfg.image_size,
        "patch_size": cfg.patch,
        "in_chans": cfg.channels,
        "num_classes": cfg.num_classes,
        "embed_dim": cfg.dim,
        "depth": cfg.depth,
        "num_heads": cfg.num_heads,
        "mlp_ratio": (cfg.mlp_dim + 0.5) / cfg.dim,
        "qkv_bias": cfg.qkv_bias,
        "init_values": cfg.layer_scale or None,
        "norm_layer": lambda dim, **kwargs: torch.nn.LayerNorm(dim, eps=cfg.norm_eps),
        "act_layer": acts[cfg.gelu],
    }
    if cfg.distilled:
        return timm.models.deit.VisionTransformerDistilled(**common)
    return timm.models.vision_transformer.VisionTransformer(
        **common,
        class_token=cfg.class_token,
        global_pool=_POOLS[cfg.pool],
        fc_norm=cfg.fc_norm,
        pool_include_prefix=cfg.pool_prefix,
        reg_tokens=cfg.num_registers,
        no_embed_class=not cfg.pos_embed_prefix,
        pre_norm=cfg.pre_norm,
        qk_norm=cfg.qk_norm,
        dynamic_img_size=cfg.dynamic_image_size,
    )


@random_configs
@given(vits(), st.integers(0, 2**16))
def test_forward(cfg: ViTConfig, seed: int) -> None:
    check_forward(build(cfg), cfg, seed)


@random_configs
@given(vits(), st.integers(0, 2**16), st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_dynamic_image_size(cfg: ViTConfig, seed: int, grid: tuple[int, int]) -> None:
    cfg = dataclasses.replace(cfg, dynamic_image_size=True)
    shape = (2, grid[0] * cfg.patch[0], grid[1] * cfg.patch[1], cfg.channels)
    image = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    check_forward(build(cfg), cfg, seed, image)


DISTILLED = ViTConfig(
    image_size=(8, 12),
    patch=(4, 4),
    dim=24,
    depth=2,
    num_heads=3,
    mlp_dim=96,
    num_classes=5,
    distilled=True,
    gelu=Gelu.ERF,
    init=Init.TIMM,
)


@random_configs
@given(vits(), st.integers(0, 2**16))
def test_distilled_forward(cfg: ViTConfig, seed: int) -> None:
    fields = ("image_size", "patch", "channels", "num_classes", "dim", "depth", "num_heads")
    fields += ("mlp_dim", "qkv_bias", "layer_scale", "gelu", "norm_eps")
    same = {name: getattr(cfg, name) for name in fields}
    cfg = dataclasses.replace(DISTILLED, **same)
    model = build(cfg)
    out = check_forward(model, cfg, seed)
    np.testing.assert_allclose(
        out.logits, (out.aux["cls_logits"] + out.aux["dist_logits"]) / 2, atol=1e-6
    )


@pytest.mark.parametrize("pool", list(_POOLS))
def test_gradients(pool: Pool) -> None:
    cfg = dataclasses.replace(
        DISTILLED,
        distilled=False,
        pool=pool,
        num_registers=1,
        qk_norm=True,
        layer_scale=0.1,
        pre_norm=True,
        patch_bias=False,
    )
    check_gradients(build(cfg), cfg)


def test_distilled_gradients() -> None:
    check_gradients(build(DISTILLED), DISTILLED)
