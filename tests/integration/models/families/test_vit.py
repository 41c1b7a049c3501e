# SPDX-License-Identifier: Apache-2.0
"""Parameter counts, options, initial values and layers of the ViT."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.families.test_vit import ROWS, TABLE, forward, published, small
from tests.unit.models.sizes import params_and_flops
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d


@pytest.mark.parametrize("name", ROWS)
def test_parameters_and_flops(name: str) -> None:
    cfg, row = published(name), TABLE[name]
    # timm cuts off what a patch does not cover: 384 pixels are 378 of patch 14.
    side = row["img_size"] // cfg.patch[0] * cfg.patch[0]
    cfg.image_size = (side, side)
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=0.01)


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


def test_plain_strings_name_choices() -> None:
    cfg = models.variant("vit_mu8", pool="map", pos_embed="sincos2d")
    assert cfg.pool is Pool.MAP
    assert cfg.pos_embed is PosEmbed.SINCOS2D
    with refused_by("settings.fields._read_choice", "model.pool"):
        models.variant("vit_mu8", pool="mpa")
