# SPDX-License-Identifier: Apache-2.0
"""Parameter counts, options, initial values and layers of the ViT."""

import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.refusals import RANGE, Told, refused_as
from vit_jax import models, trees
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed

TABLE = json.loads((Path(__file__).parents[3] / "golden" / "param_counts.json").read_text())
TIMM_SIZES = {
    "tiny": "ti",
    "small": "s",
    "base": "b",
    "large": "l",
    "huge": "h",
    "giant": "g",
    "gigantic": "G",
    "giantopt": "gopt",
    "so400m": "so400m",
}
GAP = {"pool": Pool.GAP, "class_token": False}
SO150M = {"dim": 896, "depth": 18, "num_heads": 14, "mlp_dim": 2304, "num_registers": 4}
SO150M2 = {"dim": 832, "depth": 21, "num_heads": 13, "mlp_dim": 2176, "num_registers": 1}
OPTIONS = {
    "vit_base_patch16_gap": ("vit_b16", {**GAP, "num_heads": 16}),
    "vit_huge_patch14_gap": ("vit_h14", GAP),
    "vit_giant_patch16_gap": ("vit_g16", GAP),
    "vit_base_patch16_reg4_gap": (
        "vit_b16",
        {**GAP, "fc_norm": True, "num_registers": 4, "pos_embed_prefix": False},
    ),
    "flexivit_small": ("vit_s16", {"pos_embed_prefix": False}),
    "flexivit_base": ("vit_b16", {"pos_embed_prefix": False}),
    "flexivit_large": ("vit_l16", {"pos_embed_prefix": False}),
    "vit_so150m_patch16_reg4_gap": ("vit_b16", {**GAP, **SO150M}),
    "vit_so150m_patch16_reg4_map": ("vit_b16", {**GAP, **SO150M, "pool": Pool.MAP}),
    "vit_so150m2_patch16_reg1_gap": (
        "vit_b16",
        {**GAP, **SO150M2, "fc_norm": True, "layer_scale": 1e-5, "qkv_bias": False},
    ),
}
# What timm has no name for, from the layer shapes: D=512, L=12, F=2048 (DeiT III-M without
# LayerScale and with a class position) and D=32, L=1, F=128.
OTHERS = {"vit_m16": 38_849_512 - 12 * 2 * 512 + 512, "vit_mu16": 76_712}
# Hybrids are test_hybrid.py's.
ROWS = [
    name
    for name in TABLE
    if name.startswith(("vit_", "deit", "flexivit")) and "_r_s16" not in name and "_s32" not in name
    if "r50_s16" not in name
]


def published(name: str) -> models.ViTConfig:
    """Return our config of a timm name."""
    stem = re.sub(r"_\d{3}$", "", name)
    if stem in OPTIONS:
        base, fields = OPTIONS[stem]
        return models.variant(base, **fields)
    found = re.fullmatch(
        r"(vit|deit3?)_([a-z0-9]+?)(_distilled)?_patch(\d+)(_siglip|_siglip_gap)?", stem
    )
    family, size, distilled, patch, siglip = found.groups()
    if size == "medium":
        size = "m"
    return models.variant(
        f"{family}_{TIMM_SIZES.get(size, size)}{patch}{distilled or ''}{siglip or ''}"
    )


def count(cfg: models.ViTConfig) -> int:
    return trees.num_params(models.abstract(cfg)["params"])


@pytest.mark.parametrize("name", OTHERS)
def test_parameter_count_by_arithmetic(name: str) -> None:
    assert count(models.variant(name)) == OTHERS[name]


def test_every_variant_builds() -> None:
    for name, cfg in models.VARIANTS.items():
        assert models.create(cfg) is not None, name


def small(**fields: object) -> models.ViTConfig:
    base = {"image_size": (16, 24), "patch": (8, 4), "depth": 2, "num_classes": 5, "dim": 16}
    return models.variant("vit_mu8", **{**base, "zero_head": False, **fields})


@functools.cache
def forward(cfg: models.ViTConfig, *, train: bool = False):
    module = models.create(cfg)
    image = np.random.default_rng(1).normal(size=(3, *models.input_shape(cfg)))
    image = image.astype(np.float32)

    @jax.jit  # one compilation instead of one per operation
    def run(key: jax.Array, image: jax.Array):
        params, _ = models.init(module, cfg, key)
        rngs = {"dropout": jax.random.key(2)}
        return params, module.apply({"params": params}, image, train=train, rngs=rngs)

    params, out = run(jax.random.key(0), image)
    return params, image, out


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (17, 24)}, "nearest image_size"),
        ({"num_heads": 3}, "num_heads=3"),
        ({"class_token": False}, "class_token"),
        ({"fc_norm": True}, "fc_norm"),
        ({"pool_prefix": True}, "pool_prefix"),
        ({"distilled": True, "pool": Pool.GAP}, "distilled"),
        ({"distilled": True, "pre_logits_dim": 4}, "pre_logits_dim=0"),
        ({"dim": 6, "num_heads": 2, "pos_embed": PosEmbed.SINCOS2D}, "divisible by 4"),
        ({"dim": 6, "num_heads": 2, "pos_embed": PosEmbed.SINCOS2D_MAE}, "sincos2d_mae needs"),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
        ({"depth": 0}, (RANGE, "model.depth")),
        ({"pool_heads": 2}, "model.pool_heads applies to model.pool=map and query"),
        (
            {"pool": Pool.QUERY, "pool_mlp_dim": 8},
            "model.pool_mlp_dim applies to model.pool=map only",
        ),
        (
            {"pool": Pool.QUERY, "mup_base_dim": 16},
            "model.mup_base_dim has no rule for what model.pool=query learns",
        ),
        (
            {"patch_drop_rate": 0.5, "token_merging": 2},
            "model.patch_drop_rate drops what model.token_merging merges; set one to 0",
        ),
        (
            {"patch_drop_rate": 0.5, "pos_embed_at": "shared"},
            "rope and positions in the blocks need the places of all; set it to 0",
        ),
        ({"base_patch": (8,)}, "model.base_grid is of the learned positions that go with"),
        ({"drawn_patches": (4, 8)}, "model.drawn_patches has one kernel for all; set model.base"),
        ({"image_size": (1, 2, 3)}, "image_size"),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))


def test_variants_are_not_shared() -> None:
    models.variant("vit_b16").depth = 1
    assert models.variant("vit_b16").depth == 12
