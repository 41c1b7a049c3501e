# SPDX-License-Identifier: Apache-2.0
"""FLOPs against hand counts and against the published table (timm 1.0, torch's flop counter)."""

import json
from pathlib import Path

import pytest

from vit_jax import models
from vit_jax.cost import flops

TABLE = json.loads((Path(__file__).parents[2] / "golden" / "param_counts.json").read_text())


@pytest.mark.parametrize(
    ("name", "overrides", "published"),
    [
        ("vit_ti16", {}, "vit_tiny_patch16_224"),
        ("vit_s32_384", {}, "vit_small_patch32_384"),
        ("vit_b16", {}, "vit_base_patch16_224"),
        ("vit_b16", {"pool": "gap", "class_token": False}, "vit_base_patch16_gap_224"),
        ("vit_l16_384", {}, "vit_large_patch16_384"),
        ("vit_h14", {}, "vit_huge_patch14_224"),
        ("vit_G14", {}, "vit_gigantic_patch14_224"),
    ],
)
def test_vits_match_the_published_table(name, overrides, published):
    if "pool" in overrides:
        overrides = overrides | {"pool": models.families.vit.Pool(overrides["pool"])}
    cfg = models.variant(name, **overrides)
    counted = flops.forward_flops(models.create(cfg), models.pair(cfg.image_size, ""))
    assert counted / 2e9 == pytest.approx(TABLE[published]["gmacs"], rel=1e-3)


def test_scan_and_remat_change_nothing():
    counts = {
        flops.forward_flops(models.create(models.variant("vit_ti16", **overrides)), 224)
        for overrides in (
            {"scan_unroll": 0},
            {"scan_unroll": 1},
            {"scan_unroll": 5},
            {"scan_unroll": 1, "remat": models.Remat.FULL},
            {"scan_unroll": 0, "remat": models.Remat.DOTS},
            {"dtype": models.DType.BFLOAT16},
        )
    }
    assert len(counts) == 1


def test_not_square():
    module = models.create(models.variant("vit_mu16", image_size=(32, 64), channels=1))
    cfg = models.variant("vit_mu16", image_size=(64, 32), channels=1)
    tall = flops.forward_flops(models.create(cfg), (64, 32), channels=1)
    assert flops.forward_flops(module, (32, 64), channels=1) == tall
