# SPDX-License-Identifier: Apache-2.0
"""Each resize rule gives what the code gives that it is named for."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import ndimage

from tests.refusals import refused_by
from vit_jax import weights
from vit_jax.errors import UserError
from vit_jax.models import SwinConfig, ViTConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.weights import resize
from vit_jax.weights.resize import ResizeRule, resize_grid, resize_patch, resizer

GOLDEN = Path(__file__).parents[2] / "golden"
TABLES = np.load(GOLDEN / "resize_tables.npz")
TOLERANCE = 1e-5

VIT = ViTConfig(patch=(8,), dim=48, depth=3, num_heads=3, mlp_dim=192, gelu=Gelu.ERF)
RULES = [ResizeRule.TIMM, ResizeRule.OFFICIAL, ResizeRule.GOOGLE, ResizeRule.TIMM_NPZ]


@pytest.mark.parametrize(
    "rule, name",
    [
        (ResizeRule.TIMM, "bicubic_aa"),
        (ResizeRule.OFFICIAL, "bicubic_noaa"),
        (ResizeRule.TIMM_NPZ, "bilinear_noaa"),
    ],
)
def test_position_table(rule: ResizeRule, name: str) -> None:
    key = "pos_resize|old=4x4,new=6x6,prefix=1|"
    old, new = TABLES[key + "old"], TABLES[key + name]
    cfg = dataclasses.replace(VIT, image_size=(48,), dim=3, num_heads=3)
    out = resizer(rule, cfg)("params/pos_embed", old, new.shape)
    np.testing.assert_allclose(out, new, atol=TOLERANCE, rtol=0)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out[:, 0], old[:, 0])


def test_position_table_of_google() -> None:
    old, new = TABLES["google|old"], TABLES["google|new"]
    cfg = dataclasses.replace(VIT, image_size=(96,), dim=8, num_heads=1)
    out = resizer(ResizeRule.GOOGLE, cfg)("params/pos_embed", old, new.shape)
    np.testing.assert_allclose(out, new, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("new", [(3, 9), (7, 1), (12, 5)])
def test_bilinear_aligned_is_scipys_zoom(new: tuple[int, int]) -> None:
    old = np.random.default_rng(0).normal(size=(7, 5, 2))
    zoom = (new[0] / 7, new[1] / 5, 1)
    expected = ndimage.zoom(old, zoom, order=1)
    out = resize_grid(old, new, resize.bilinear_aligned)
    np.testing.assert_allclose(out, expected, atol=1e-12)


@pytest.mark.parametrize("old, new", [(4, 9), (9, 4), (5, 7)])
def test_timms_cubic_is_that_of_dynamic_image_size(old: int, new: int) -> None:
    grid = np.random.default_rng(0).normal(size=(old, old, 3)).astype(np.float32)
    expected = jax.image.resize(grid, (new, new, 3), "cubic")
    out = resize_grid(grid, (new, new), resize.bicubic_antialiased)
    np.testing.assert_allclose(out, expected, atol=2e-6)


def test_positions_for_images_of_any_shape() -> None:
    grid = np.random.default_rng(0).normal(size=(8, 8, 48)).astype(np.float32)
    cfg = dataclasses.replace(VIT, image_size=(24, 80))
    table = np.concatenate([grid[:1, 0], grid.reshape(64, 48)])[None]
    out = resizer(ResizeRule.NAFLEX, cfg)("params/pos_embed", table, (1, 31, 48))
    expected = jax.image.resize(grid, (3, 10, 48), "linear").reshape(30, 48)
    np.testing.assert_allclose(out[0, 1:], expected, atol=2e-6)


@pytest.mark.parametrize("rule, name", [(ResizeRule.OFFICIAL, "ms"), (ResizeRule.TIMM, "timm")])
def test_bias_table(rule: ResizeRule, name: str) -> None:
    key = "rel_resize|win=4->5|"
    old, new = TABLES[key + "old"], TABLES[key + name]
    cfg = SwinConfig(image_size=(160,), window=(5,))  # a grid of 40, then 20, 10 and 5
    out = resizer(rule, cfg)("params/stage2/block0/attn/rel_pos_bias", old, new.shape)
    np.testing.assert_allclose(out, new, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "rule, name", [(ResizeRule.TIMM, "bicubic_aa"), (ResizeRule.TIMM_NPZ, "bilinear_noaa")]
)
def test_patch_kernel(rule: ResizeRule, name: str) -> None:
    old, new = (TABLES[f"patch_resize|8x8->6x6|{k}"].transpose(2, 3, 1, 0) for k in ("old", name))
    out = resizer(rule, VIT)("params/patch_embed/kernel", old, new.shape)
    np.testing.assert_allclose(out, new, atol=TOLERANCE, rtol=0)


def test_larger_patches_give_the_same_tokens() -> None:
    rng = np.random.default_rng(0)
    kernel, image = rng.normal(size=(4, 3, 2, 5)), rng.normal(size=(4, 3, 2))
    for matrix in (resize.bilinear, resize.bicubic_antialiased):
        larger = resize_patch(kernel, (6, 7), matrix)
        seen = resize_grid(image, (6, 7), matrix)
        tokens = np.einsum("pqc,pqcd->d", seen, larger)
        np.testing.assert_allclose(tokens, np.einsum("pqc,pqcd->d", image, kernel), atol=1e-12)


def test_googles_files_are_resized_as_google_does() -> None:
    path = GOLDEN / "google_vit_prelogits.weights.npz"
    cfg = dataclasses.replace(
        VIT, image_size=(64,), depth=2, mlp_dim=96, pre_logits_dim=24, num_classes=7
    )
    grid = np.load(path)["Transformer/posembed_input/pos_embedding"][0, 1:].reshape(4, 4, 48)
    for rule, matrix in (
        (ResizeRule.AUTO, resize.bilinear_aligned),
        (ResizeRule.TIMM_NPZ, resize.bilinear),
    ):
        found = weights.load(f"npz:{path}", cfg, resize=rule)["params"]["pos_embed"]
        expected = resize_grid(grid, (8, 8), matrix).reshape(64, 48)
        np.testing.assert_allclose(found[0, 1:], expected, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_size_is_left_as_it_is(rule: ResizeRule) -> None:
    cfg = dataclasses.replace(VIT, image_size=(24, 40))
    resized = functools.partial(resizer(rule, cfg), "params/pos_embed")
    table = np.random.default_rng(0).normal(size=(1, 16, 48)).astype(np.float32)
    np.testing.assert_array_equal(resized(table, table.shape), table)


def test_a_known_grid_need_not_be_square() -> None:
    old = dataclasses.replace(VIT, image_size=(16, 64))
    new = dataclasses.replace(VIT, image_size=(32, 32))  # of as many patches
    table = np.random.default_rng(0).normal(size=(1, 17, 48)).astype(np.float32)
    out = resizer(ResizeRule.TIMM, new, old=old)("params/pos_embed", table, table.shape)
    expected = resize_grid(table[0, 1:].reshape(2, 8, 48), (4, 4), resize.bicubic_antialiased)
    np.testing.assert_allclose(out[0, 1:].reshape(4, 4, 48), expected, atol=1e-6)
    same = resizer(ResizeRule.TIMM, old, old=old)("params/pos_embed", table, table.shape)
    np.testing.assert_array_equal(same, table)


def test_known_windows_need_not_be_square() -> None:
    old = SwinConfig(image_size=(32, 224), window=(7,))  # stage 1: a grid of 4 x 28
    new = SwinConfig(image_size=(224, 224), window=(7,))
    name = "params/stage1/block1/attn/rel_pos_bias"
    table = np.random.default_rng(0).normal(size=(7 * 13, 6)).astype(np.float32)
    out = resizer(ResizeRule.OFFICIAL, new, old=old)(name, table, (169, 6))
    expected = resize_grid(table.reshape(7, 13, 6), (13, 13), resize.bicubic).reshape(169, 6)
    np.testing.assert_allclose(out, expected, atol=1e-6)
    with pytest.raises(UserError, match="91 offsets are no square window's"):
        resizer(ResizeRule.OFFICIAL, new)(name, table, (169, 6))


def _table(cfg: ViTConfig, rows: int) -> None:
    table = np.zeros((1, rows, cfg.dim), np.float32)
    resizer(ResizeRule.TIMM, cfg)("params/pos_embed", table, (1, 999, cfg.dim))


def test_what_cannot_be_resized_is_one_line() -> None:
    bare = dataclasses.replace(VIT, pos_embed_prefix=False)
    with pytest.raises(UserError, match=r"17 positions .* are 1 \+ 4 x 4.* has 0 before"):
        _table(bare, 17)
    with pytest.raises(UserError, match=r"18 positions .* are 2 \+ 4 x 4.* has 1 before"):
        _table(VIT, 18)
    with pytest.raises(UserError, match=r"40 positions are not 1 and a square grid"):
        _table(VIT, 40)
    with pytest.raises(UserError, match=r"init.resize=official has no rule .* patch kernel"):
        resizer(ResizeRule.OFFICIAL, VIT)(
            "params/patch_embed/kernel", np.zeros((4, 4, 3, 2)), (8, 8)
        )
    with pytest.raises(UserError, match=r"init.resize=google has no rule .* bias table"):
        resizer(ResizeRule.GOOGLE, SwinConfig())(
            "params/stage0/block0/attn/rel_pos_bias", np.zeros((49, 3)), (169, 3)
        )


def test_none_refuses() -> None:
    cfg = dataclasses.replace(VIT, image_size=(48,), num_classes=10)
    with refused_by("weights.apply._check_keys") as caught:
        weights.load(f"timm:{GOLDEN}/vit_resize_bicubic.safetensors", cfg, resize=ResizeRule.NONE)
    assert "pos_embed: in the file [1, 17, 48]" in str(caught.value)
