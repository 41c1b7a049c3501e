# SPDX-License-Identifier: Apache-2.0
"""The ViT's later options at random configs against timm's Eva: logits, every weight's gradient."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import check_forward, check_gradients, random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.models import ViTConfig, pair
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.layers.rope import Rope, RopeOrder

_POOLS = {Pool.CLS: "token", Pool.GAP: "avg", Pool.MAP: "map"}


@st.composite
def evas(draw: st.DrawFn) -> ViTConfig:
    heads, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    patch = draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dim = heads * 4 * draw(st.integers(1, 4))
    pool, pre_norm = draw(st.sampled_from(list(_POOLS))), draw(st.booleans())
    rope = draw(st.sampled_from(list(Rope)))
    places: dict[str, Any] = {}
    if rope is not Rope.NONE:
        places = {
            "rope_theta": draw(st.sampled_from([10.0, 100.0, 10000.0])),
            "rope_order": draw(st.sampled_from(list(RopeOrder))),
        }
    if rope in (Rope.LANG, Rope.DINOV3):
        places["rope_offset"] = draw(st.sampled_from([0.0, 1.0]))
    if rope is Rope.LANG and draw(st.booleans()):
        places["rope_grid"] = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    class_token = pool is Pool.CLS or draw(st.booleans())
    registers = draw(st.integers(0, 2))
    is_map = pool is Pool.MAP
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
        pool_heads=draw(st.sampled_from([0, 2])) if is_map else 0,
        pool_mlp_dim=draw(st.sampled_from([0, 9])) if is_map else 0,
        pool_prefix=is_map,
        fc_norm=pool is Pool.GAP and draw(st.booleans()),
        class_token=class_token,
        num_registers=registers,
        pos_embed=draw(st.sampled_from([PosEmbed.LEARNED, PosEmbed.NONE])),
        pos_embed_prefix=draw(st.booleans()),
        pre_norm=pre_norm,
        patch_bias=not pre_norm,  # timm ties the two
        qkv_bias=draw(st.booleans()),
        key_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        layer_scale=draw(st.sampled_from([0.0, 0.1])),
        norm=draw(st.sampled_from(list(TokenNorm))),
        mlp=draw(st.sampled_from(list(MlpKind))),
        mlp_norm=draw(st.booleans()),
        gelu=Gelu.ERF,
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        rope=rope,
        init=Init.TIMM,
        **places,
    )


def build(
    cfg: ViTConfig, *, separate: bool | None = None, packed: bool | None = None
) -> "torch.nn.Module":
    """Build timm's network: q, k, v in one layer or three, SwiGLU's two layers as two or as one."""
    norm = timm.layers.RmsNorm if cfg.norm is TokenNorm.RMS else torch.nn.LayerNorm
    separate = cfg.mlp_norm if separate is None else separate
    packed = cfg.rope is not Rope.DINOV3 if packed is None else packed
    return timm.models.eva.Eva(
        img_size=pair(cfg.image_size, "image_size"),
        patch_size=pair(cfg.patch, "patch"),
        in_chans=cfg.channels,
        num_classes=cfg.num_classes,
        global_pool=_POOLS[cfg.pool],
        embed_dim=cfg.dim,
        depth=cfg.depth,
        num_heads=cfg.num_heads,
        # Its other attention has a bias of the keys.
        attn_type="rope" if cfg.key_bias else "eva",
        qkv_bias=cfg.qkv_bias,
        qkv_fused=not separate,
        qk_norm=cfg.qk_norm,
        mlp_ratio=(cfg.mlp_dim + 0.5) / cfg.dim,
        swiglu_mlp=cfg.mlp is MlpKind.SWIGLU,
        swiglu_align_to=0 if packed else 1,
        scale_mlp=cfg.mlp_norm,
        norm_layer=functools.partial(norm, eps=cfg.norm_eps),
        init_values=cfg.layer_scale or None,
        class_token=cfg.class_token,
        num_reg_tokens=cfg.num_registers,
        no_embed_class=not cfg.pos_embed_prefix,
        use_abs_pos_emb=cfg.pos_embed is PosEmbed.LEARNED,
        use_rot_pos_emb=cfg.rope is not Rope.NONE,
        rope_type={Rope.LANG: "cat", Rope.NONE: "cat"}.get(cfg.rope, cfg.rope.value),
        rope_temperature=cfg.rope_theta,
        rope_grid_offset=cfg.rope_offset,
        rope_grid_indexing=cfg.rope_order.value,
        rope_rotate_half=cfg.rope is Rope.DINOV3,
        ref_feat_shape=pair(cfg.rope_grid, "rope_grid") if cfg.rope_grid else None,
        use_pre_transformer_norm=cfg.pre_norm,
        use_post_transformer_norm=not cfg.fc_norm,
        use_fc_norm=cfg.fc_norm,
        attn_pool_num_heads=cfg.pool_heads or None,
        attn_pool_mlp_ratio=((cfg.pool_mlp_dim or cfg.mlp_dim) + 0.5) / cfg.dim,
        dynamic_img_size=cfg.dynamic_image_size,
    )


@random_configs
@given(evas(), st.integers(0, 2**16), st.booleans(), st.booleans())
def test_forward(cfg: ViTConfig, seed: int, separate: bool, packed: bool) -> None:
    check_forward(build(cfg, separate=separate, packed=packed), cfg, seed)


@random_configs
@given(evas(), st.integers(0, 2**16), st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_dynamic_image_size(cfg: ViTConfig, seed: int, grid: tuple[int, int]) -> None:
    cfg = dataclasses.replace(cfg, dynamic_image_size=True)
    shape = (2, grid[0] * cfg.patch[0], grid[1] * cfg.patch[1], cfg.channels)
    image = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    check_forward(build(cfg), cfg, seed, image)


BASE = ViTConfig(
    image_size=(8, 12),
    patch=(4, 4),
    dim=24,
    depth=2,
    num_heads=3,
    mlp_dim=64,
    num_classes=5,
    gelu=Gelu.ERF,
    init=Init.TIMM,
)
# The published networks, small.
PUBLISHED = {
    "DINOv3 S": {
        "num_registers": 4,
        "pos_embed": PosEmbed.NONE,
        "layer_scale": 0.1,
        "norm_eps": 1e-5,
        "key_bias": False,
        "rope": Rope.DINOV3,
    },
    "DINOv3 7B": {
        "num_registers": 4,
        "pos_embed": PosEmbed.NONE,
        "norm_eps": 1e-5,
        "qkv_bias": False,
        "mlp": MlpKind.SWIGLU,
        "rope": Rope.DINOV3,
    },
    "EVA-02 S": {
        "pool": Pool.GAP,
        "fc_norm": True,
        "key_bias": False,
        "mlp": MlpKind.SWIGLU,
        "rope": Rope.LANG,
        "rope_theta": 10000.0,
        "rope_grid": (4, 4),
    },
    "EVA-02 B": {
        "pool": Pool.GAP,
        "fc_norm": True,
        "key_bias": False,
        "mlp": MlpKind.SWIGLU,
        "mlp_norm": True,
        "rope": Rope.LANG,
        "rope_theta": 10000.0,
        "rope_grid": (4, 4),
    },
    "RoPE-ViT axial": {
        "pos_embed_prefix": False,
        "layer_scale": 0.1,
        "rope": Rope.LANG,
        "rope_order": RopeOrder.XY,
    },
    "RoPE-ViT mixed": {
        "pos_embed": PosEmbed.NONE,
        "layer_scale": 0.1,
        "rope": Rope.MIXED,
        "rope_theta": 10.0,
        "rope_order": RopeOrder.XY,
    },
    "PE": {
        "pool": Pool.MAP,
        "pool_prefix": True,
        "pool_heads": 4,
        "pool_mlp_dim": 40,
        "pre_norm": True,
        "patch_bias": False,
        "norm_eps": 1e-5,
        "rope": Rope.LANG,
        "rope_theta": 10000.0,
        "rope_grid": (4, 4),
        "rope_offset": 1.0,
        "rope_order": RopeOrder.XY,
    },
    "RMSNorm of q and k": {"norm": TokenNorm.RMS, "qk_norm": True, "rope": Rope.LANG},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_gradients(name: str) -> None:
    cfg = dataclasses.replace(BASE, **PUBLISHED[name])
    check_gradients(build(cfg), cfg)
