# SPDX-License-Identifier: Apache-2.0
"""Parameter counts, options, initial values and layers of the ViT."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models.layers.attention import attend
from vit_jax.models.layers.drop_path import DropPathRule, drop_path, drop_path_rates
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed, sincos2d

TABLE = json.loads((Path(__file__).parent.parent / "golden" / "param_counts.json").read_text())
PLAIN = {
    "vit_ti16": "vit_tiny_patch16_224",
    "vit_ti16_384": "vit_tiny_patch16_384",
    "vit_s8": "vit_small_patch8_224",
    "vit_s16": "vit_small_patch16_224",
    "vit_s32": "vit_small_patch32_224",
    "vit_s32_384": "vit_small_patch32_384",
    "vit_b8": "vit_base_patch8_224",
    "vit_b16": "vit_base_patch16_224",
    "vit_b16_384": "vit_base_patch16_384",
    "vit_b32": "vit_base_patch32_224",
    "vit_l14": "vit_large_patch14_224",
    "vit_l16": "vit_large_patch16_224",
    "vit_l32": "vit_large_patch32_224",
    "vit_h14": "vit_huge_patch14_224",
    "vit_g14": "vit_giant_patch14_224",
    "vit_G14": "vit_gigantic_patch14_224",
}
GAP = {"pool": Pool.GAP, "class_token": False, "fc_norm": True}
SIGLIP = {"pool": Pool.MAP, "class_token": False}
DEIT3 = {"pos_embed_prefix": False, "layer_scale": 1e-4}
OPTIONS = {
    "deit3_medium_patch16_224": ("vit_m16", DEIT3),
    "deit3_huge_patch14_224": ("vit_h14", DEIT3),
    "vit_base_patch16_gap_224": ("vit_b16", GAP),
    "vit_huge_patch14_gap_224": ("vit_h14", GAP),
    "vit_base_patch16_reg4_gap_256": (
        "vit_b16_256",
        {**GAP, "num_registers": 4, "pos_embed_prefix": False},
    ),
    "vit_so400m_patch14_siglip_224": ("vit_so400m14", SIGLIP),
    "vit_so400m_patch14_siglip_384": ("vit_so400m14", {**SIGLIP, "image_size": (378, 378)}),
    "vit_so400m_patch14_siglip_gap_224": ("vit_so400m14", {**SIGLIP, "pool": Pool.GAP}),
}
# What timm has no name for, from the layer shapes: D=512, L=12, F=2048 and D=32, L=1, F=128.
OTHERS = {"vit_m16": 38_849_512 - 12 * 2 * 512 + 512, "vit_mu16": 76_712}


def count(cfg: models.ViTConfig) -> int:
    module = models.create(cfg)
    shapes = jax.eval_shape(lambda key: models.init(module, cfg, key)[0], jax.random.key(0))
    return trees.num_params(shapes)


@pytest.mark.parametrize("name", PLAIN)
def test_parameter_count(name: str) -> None:
    assert count(models.variant(name)) == TABLE[PLAIN[name]]["params"]


@pytest.mark.parametrize("name", OPTIONS)
def test_parameter_count_of_options(name: str) -> None:
    base, fields = OPTIONS[name]
    assert count(models.variant(base, **fields)) == TABLE[name]["params"]


@pytest.mark.parametrize("name", OTHERS)
def test_parameter_count_by_arithmetic(name: str) -> None:
    # vit_m16 is DeiT III-M (38,849,512 in timm) without LayerScale and with a class position.
    assert count(models.variant(name)) == OTHERS[name]


def test_every_variant_builds() -> None:
    for name, cfg in models.VARIANTS.items():
        if cfg.image_size[0] % cfg.patch[0] == 0:
            assert models.create(cfg) is not None, name


def small(**fields: object) -> models.ViTConfig:
    base = {"image_size": (16, 24), "patch": (8, 4), "depth": 2, "num_classes": 5, "dim": 16}
    return models.variant("vit_mu8", **{**base, "zero_head": False, **fields})


def forward(cfg: models.ViTConfig, *, batch: int = 3, train: bool = False, seed: int = 0):
    module = models.create(cfg)
    image = np.random.default_rng(1).normal(size=(batch, *models.input_shape(cfg)))
    image = image.astype(np.float32)

    @jax.jit  # one compilation instead of one per operation
    def run(key: jax.Array, image: jax.Array):
        params, _ = models.init(module, cfg, key)
        rngs = {"dropout": jax.random.key(2)}
        return params, module.apply({"params": params}, image, train=train, rngs=rngs)

    params, out = run(jax.random.key(seed), image)
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


def test_sincos_table() -> None:
    table = sincos2d(2, 3, 8)
    assert table.shape == (6, 8)
    # Row 1, column 2 of the grid: x = 2, y = 1; two frequencies, 1 and 1/10000.
    expected = [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]
    expected += [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)]
    np.testing.assert_allclose(table[5], expected, atol=1e-7)


def test_gelus() -> None:
    x = jnp.linspace(-4, 4, 101)
    exact = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in np.asarray(x)])
    np.testing.assert_allclose(gelu(x, Gelu.ERF), exact, atol=1e-6)
    assert 1e-4 < np.abs(gelu(x, Gelu.TANH) - exact).max() < 5e-4
    np.testing.assert_allclose(gelu(x, Gelu.QUICK), x / (1 + np.exp(-1.702 * x)), atol=1e-6)


def test_attention_equals_its_definition_forward_and_backward() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, 3, 5, 4)) for key in keys)

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        logits = jnp.einsum("bhnd,bhmd->bhnm", q, k) / 2.0
        return jnp.einsum("bhnm,bhmd->bhnd", jax.nn.softmax(logits), v)

    np.testing.assert_allclose(attend(q, k, v), plain(q, k, v), atol=1e-6)
    grads = [
        jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)
        for f in (attend, plain)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *grads)


def test_attention_dropout_keeps_the_mean() -> None:
    q = k = jnp.zeros((1, 1, 64, 4))
    v = jnp.ones((1, 1, 64, 4))
    out = attend(q, k, v, dropout_rate=0.25, dropout_key=jax.random.key(0))
    assert float(out.mean()) == pytest.approx(1, abs=0.05)
    assert float(out.std()) > 0.02


def test_drop_path() -> None:
    np.testing.assert_allclose(drop_path_rates(0.3, 4, DropPathRule.LINEAR), [0, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(drop_path_rates(0.3, 2, DropPathRule.CONSTANT), [0.3, 0.3])
    out = drop_path(jnp.ones((4000, 2, 3)), jnp.float32(0.25), jax.random.key(0))
    kept = np.asarray(out)[:, 0, 0] > 0
    assert kept.mean() == pytest.approx(0.75, abs=0.03)
    # Whole examples, scaled so that the mean stays.
    np.testing.assert_allclose(out[kept], 1 / 0.75, rtol=1e-6)
    assert not out[~kept].any()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (17, 24)}, "nearest image_size"),
        ({"num_heads": 3}, "num_heads=3"),
        ({"class_token": False}, "class_token"),
        ({"fc_norm": True}, "fc_norm"),
        ({"dim": 6, "num_heads": 2, "pos_embed": PosEmbed.SINCOS2D}, "divisible by 4"),
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
