# SPDX-License-Identifier: Apache-2.0
"""Parameter counts, options, initial values and layers of the ViT."""

import dataclasses
import functools
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.sizes import params_and_flops
from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d

TABLE = json.loads((Path(__file__).parent.parent / "golden" / "param_counts.json").read_text())
TIMM_SIZES = {
    "tiny": "ti",
    "small": "s",
    "base": "b",
    "large": "l",
    "huge": "h",
    "giant": "g",
    "gigantic": "G",
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


@pytest.mark.parametrize("name", ROWS)
def test_parameters_and_flops(name: str) -> None:
    cfg, row = published(name), TABLE[name]
    # timm cuts off what a patch does not cover: 384 pixels are 378 of patch 14.
    side = row["img_size"] // cfg.patch[0] * cfg.patch[0]
    cfg.image_size = (side, side)
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=0.01)


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
    "fields",
    [
        {"pool": Pool.GAP, "num_registers": 2},
        {"pool": Pool.GAP, "class_token": False, "pos_embed": PosEmbed.SINCOS2D},
        {"pool": Pool.MAP, "class_token": False, "pos_embed": PosEmbed.NONE},
        {"qk_norm": True, "layer_scale": 0.1, "pre_logits_dim": 7, "gelu": Gelu.QUICK},
        {"pre_norm": True, "patch_bias": False, "qkv_bias": False, "pos_embed_prefix": False},
        {"dtype": models.DType.BFLOAT16, "remat": models.Remat.DOTS},
    ],
    ids=lambda f: "-".join(f),
)
def test_options_give_the_promised_shapes(fields: dict) -> None:
    cfg = small(**fields)
    _, _, out = forward(cfg)
    prefix = int(cfg.class_token) + cfg.num_registers
    assert out.logits.shape == (3, 5)
    assert out.logits.dtype == jnp.float32
    assert out.features.shape == (3, cfg.pre_logits_dim or 16)
    assert out.tokens.shape == (3, prefix + 2 * 6, 16)
    assert np.isfinite(out.logits).all()


@pytest.mark.parametrize("kind", sorted(FIXED))
def test_fixed_positions_are_added_to_the_patches_alone(kind: PosEmbed) -> None:
    params, image, out = forward(small(pos_embed=kind, depth=1))
    learned = small(pos_embed_prefix=False, depth=1)
    table = sincos2d(2, 6, 16, kind)[None]
    same = jax.jit(models.create(learned).apply)({"params": {**params, "pos_embed": table}}, image)
    np.testing.assert_allclose(out.tokens, same.tokens, atol=1e-6)


def test_dropout_and_drop_path_act_in_training_only() -> None:
    cfg = small(dropout_rate=0.3, drop_path_rate=0.5, attention_dropout_rate=0.3)
    plain = small()
    for field in ("dropout_rate", "drop_path_rate", "attention_dropout_rate"):
        one = dataclasses.replace(plain, **{field: getattr(cfg, field)})
        _, _, trained = forward(one, train=True)
        _, _, evaluated = forward(one)
        _, _, reference = forward(plain)
        np.testing.assert_array_equal(evaluated.logits, reference.logits)
        assert not np.allclose(trained.logits, reference.logits), field


def test_each_example_is_its_own() -> None:
    cfg = small()
    params, image, out = forward(cfg)
    alone = jax.jit(models.create(cfg).apply)({"params": params}, image[1:2])
    np.testing.assert_allclose(out.logits[1:2], alone.logits, atol=1e-6)


def test_head_starts_at_zero_and_at_its_bias() -> None:
    params, _, out = forward(small(zero_head=True, head_bias=-6.9))
    assert not params["head"]["kernel"].any()
    np.testing.assert_array_equal(out.logits, np.full((3, 5), -6.9, np.float32))


@pytest.mark.parametrize(
    "init, kernel_std, bias_std, patch_std",
    [
        # Xavier uniform of a D -> D projection; lecun normal of the patch.
        (Init.JAX, math.sqrt(2 / (64 + 64)), 0.0, 1 / math.sqrt(8 * 8 * 3)),
        # normal(0.02); U(+-1/sqrt(fan_in)) has std 1/sqrt(3 fan_in).
        (Init.TIMM, 0.02, 0.0, 1 / math.sqrt(3 * 8 * 8 * 3)),
        (Init.MOCO, math.sqrt(2 / (64 + 64)), 0.0, 1 / math.sqrt(3 * 8 * 8 * 3)),
    ],
)
def test_initial_values(init: Init, kernel_std: float, bias_std: float, patch_std: float) -> None:
    cfg = small(init=init, dim=64, patch=(8, 8), image_size=(16, 16), depth=4, mlp_dim=256)
    params, _, _ = forward(cfg)
    qkv = params["blocks"]["attn"]["qkv"]
    assert np.std(qkv["kernel"]) == pytest.approx(kernel_std, rel=0.03)
    assert np.std(qkv["bias"]) == bias_std
    assert np.std(params["patch_embed"]["kernel"]) == pytest.approx(patch_std, rel=0.05)
    assert np.std(params["pos_embed"]) == pytest.approx(0.02, rel=0.15)
    # Layers are drawn apart.
    assert not np.allclose(qkv["kernel"][0], qkv["kernel"][1])
    mlp_bias = np.std(params["blocks"]["mlp"]["fc1"]["bias"])
    assert mlp_bias == (pytest.approx(1e-6, rel=0.1) if init is Init.JAX else 0)


def test_dynamic_image_size() -> None:
    cfg = small(dynamic_image_size=True, pos_embed=PosEmbed.SINCOS2D, pool=Pool.GAP)
    params, image, out = forward(cfg)
    apply, image = jax.jit(models.create(cfg).apply), jnp.asarray(image)
    fixed = dataclasses.replace(cfg, dynamic_image_size=False)
    np.testing.assert_allclose(apply({"params": params}, image).logits, out.logits, atol=1e-6)
    # A fixed table is made for the grid at hand: as of a model of that size.
    larger = jax.random.normal(jax.random.key(0), (1, 24, 24, 3))
    at_24 = models.create(dataclasses.replace(fixed, image_size=(24, 24)))
    np.testing.assert_allclose(
        apply({"params": params}, larger).logits,
        jax.jit(at_24.apply)({"params": params}, larger).logits,
        atol=1e-6,
    )
    with pytest.raises(UserError, match="nearest image_size"):
        apply({"params": params}, jnp.zeros((1, 25, 24, 3)))
    with pytest.raises(UserError, match="takes images"):
        apply({"params": params}, jnp.zeros((1, 24, 24, 1)))


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
        ({"drop_path_rate": 1.0}, "drop_path_rate"),
        ({"depth": 0}, "depth"),
        ({"image_size": (1, 2, 3)}, "image_size"),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.create(small(**fields))


def test_wrong_input_is_named() -> None:
    cfg = small()
    params, _, _ = forward(cfg)
    assert cfg.image_size == (16, 24)
    with pytest.raises(UserError, match=r"\[B, 16, 24, 3\], not \[1, 16, 16, 3\]"):
        models.create(cfg).apply({"params": params}, jnp.zeros((1, 16, 16, 3)))


@pytest.mark.parametrize("name", ["vit_b17", "swin_x", "vit_b16_x"])
def test_unknown_variant(name: str) -> None:
    with pytest.raises(UserError, match="unknown model"):
        models.variant(name)


def test_unknown_field_of_a_variant() -> None:
    with pytest.raises(UserError, match="did you mean 'depth'"):
        models.variant("vit_b16", dpth=3)


def test_variants_are_not_shared() -> None:
    models.variant("vit_b16").depth = 1
    assert models.variant("vit_b16").depth == 12


def test_plain_strings_name_choices() -> None:
    cfg = models.variant("vit_mu8", pool="map", pos_embed="sincos2d")
    assert cfg.pool is Pool.MAP
    assert cfg.pos_embed is PosEmbed.SINCOS2D
    with pytest.raises(UserError, match=r"unknown model\.pool 'mpa'; did you mean 'map'"):
        models.variant("vit_mu8", pool="mpa")
