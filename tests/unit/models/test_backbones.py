# SPDX-License-Identifier: Apache-2.0
"""The published backbones by name have exactly the parameters of timm's or of their authors'."""

import json
from pathlib import Path

import pytest

from vit_jax import models, trees

GOLDEN = Path(__file__).parents[2] / "golden"
# By variant: timm's name of the architecture, and its parameters without a head.
BACKBONES = json.loads((GOLDEN / "backbone_counts.json").read_text())
# Counted in the authors' code, with 1,000 classes.
VIT5 = {
    "vit5_s16": 22_039_144,
    "vit5_b16": 86_543_080,
    "vit5_l16": 304_258_024,
    "vit5_xl16": 448_505_128,
}

# Counted in transformers, of the one that pools by attention with its head.
AIMV2 = {"vit_l14_aimv2_native": 308_935_680, "vit_l14_aimv2_lit": 312_345_600}


def count(cfg: models.ModelConfig) -> int:
    return trees.num_params(models.abstract(cfg)["params"])


def test_parameters_are_timms(subtests: pytest.Subtests) -> None:
    for name in BACKBONES:
        with subtests.test(name=name):
            assert count(models.variant(name, num_classes=0)) == BACKBONES[name]["params"]


@pytest.mark.parametrize("name", VIT5)
def test_parameters_are_those_of_vit5(name: str) -> None:
    assert count(models.variant(name)) == VIT5[name]


def test_parameters_of_aimv2_are_transformers() -> None:
    for name, expected in AIMV2.items():
        assert count(models.variant(name, num_classes=0)) == expected


# D, L and F follow from the counts above: these have the sizes of a ViT, and other heads or tokens.
OTHERS = {
    "vit_s16_mocov3": "vit_s16_dino",  # twice the heads
    "vit_b16_mocov3": "vit_b16_dino",
    "mae_b16": "vit_b16_dino",
}


@pytest.mark.parametrize("name, same", OTHERS.items())
def test_sizes_of_a_vit(name: str, same: str) -> None:
    cfg = models.variant(name, num_classes=0, pos_embed="learned")
    assert count(cfg) == BACKBONES[same]["params"]


def test_ijepa_has_no_class_token() -> None:
    # timm's vit_huge_patch14_gap_224 (param_counts.json) without its head.
    counts = json.loads((GOLDEN / "param_counts.json").read_text())
    head = 1000 * 1281
    expected = counts["vit_huge_patch14_gap_224"]["params"] - head
    assert count(models.variant("vit_h14_ijepa", num_classes=0)) == expected
