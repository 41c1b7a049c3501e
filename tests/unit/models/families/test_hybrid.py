# SPDX-License-Identifier: Apache-2.0
"""Hybrids: published sizes, timm's golden, grids, options, initial values, bad configs."""

import json
from pathlib import Path

import pytest

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.families import hybrid
from vit_jax.models.families.hybrid import Standardise
from vit_jax.models.layers.mlp import Gelu

GOLDEN = Path(__file__).parents[3] / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
NAMES = {
    "r_vit_ti16": "vit_tiny_r_s16_p8",
    "r26_vit_s32": "vit_small_r26_s32",
    "r26_vit_b32": "vit_base_r26_s32",
    "r50_vit_b16": "vit_base_r50_s16",
    "r50_vit_l32": "vit_large_r50_s32",
}
ROWS = {
    f"{name}_{side}": f"{row}_{side}"
    for name, row in NAMES.items()
    for side in (224, 384)
    if f"{row}_{side}" in TABLE
}


def test_every_row_and_variant_is_compared() -> None:
    assert set(NAMES) == set(hybrid.FAMILY.variants)
    rows = {name for name in TABLE if name.startswith("vit_") and ("_r_" in name or "_s32" in name)}
    assert set(ROWS.values()) == rows | {"vit_base_r50_s16_224", "vit_base_r50_s16_384"}


def test_only_google_s_standardisation_is_published() -> None:
    for name, cfg in hybrid.FAMILY.variants.items():
        assert cfg.weight_std is Standardise.GOOGLE, name
        assert cfg.gelu is Gelu.TANH, name


def test_patches_have_one_size() -> None:
    with pytest.raises(UserError, match="base_patch, base_grid and drawn_patches are a plain ViT"):
        models.create(models.variant("r_vit_ti16", base_patch=(2,), base_grid=(4,)))
