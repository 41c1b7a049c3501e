# SPDX-License-Identifier: Apache-2.0
"""BiT and ResNet-v2: published sizes, timm's golden, options, initial values, bad configs."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.refusals import RANGE, Told, refused_as, refused_by
from vit_jax import models
from vit_jax.models import BiTConfig
from vit_jax.models.conv.resnet import Norm
from vit_jax.models.families import bit
from vit_jax.models.layers.init import Init

GOLDEN = Path(__file__).parents[3] / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
BITS = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
NAMES = {f"bit_r{size}": f"resnetv2_{size}_bit" for size in BITS}
NAMES |= {name: name for name in ("resnetv2_50", "resnetv2_101", "resnetv2_152")}


def test_every_row_is_compared() -> None:
    assert set(NAMES) <= set(bit.FAMILY.variants)
    assert set(NAMES.values()) == {name for name in TABLE if name.startswith("resnetv2_")}


def small(**fields: object) -> BiTConfig:
    base = {"image_size": (17, 20), "num_classes": 5, "depths": (1, 2), "widths": (32, 64)}
    return BiTConfig(**{**base, "stem_width": 8, "num_groups": 4, "zero_head": False, **fields})


def test_head_of_google_s_starts_at_zero() -> None:
    assert models.variant("bit_r50x1").zero_head
    assert not models.variant("resnetv2_50").zero_head


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"depths": (1,)}, "a number for each stage"),
        ({"depths": (), "widths": ()}, "a number for each stage"),
        ({"depths": (1, 0)}, (RANGE, "model.depths")),
        ({"widths": (32, 0)}, (RANGE, "model.widths")),
        ({"num_groups": 16}, r"num_groups=16 does not divide the channels \[8\]"),
        ({"num_groups": 0}, (RANGE, "model.num_groups")),
        ({"stem_width": 0}, (RANGE, "model.stem_width")),
        ({"width_factor": 0}, (RANGE, "model.width_factor")),
        ({"init": Init.MOCO}, "choose jax or timm"),
        ({"image_size": (1, 2, 3)}, ("models.base.pair", "model.image_size")),
        ({"scan_unroll": -1}, (RANGE, "model.scan_unroll")),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))


def test_batch_norm_needs_no_groups() -> None:
    models.create(small(norm=Norm.BATCH, num_groups=7))


def test_wrong_input_is_named() -> None:
    with refused_by("models.base.check_input") as caught:
        models.create(small()).init(jax.random.key(0), jnp.zeros((1, 17, 21, 3)))
    assert "[1, 17, 21, 3]" in str(caught.value)
