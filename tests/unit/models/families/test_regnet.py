# SPDX-License-Identifier: Apache-2.0
"""RegNetY: widths, counts, costs, timm's outputs, initial values and options."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import RANGE, Told, refused_as
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.models.families.regnet import RegNetConfig, stages

GOLDEN = Path(__file__).parents[3] / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
# name: timm's name, depth and width of each stage
PUBLISHED = {
    "200mf": ("002", (1, 1, 4, 7), (24, 56, 152, 368)),
    "400mf": ("004", (1, 3, 6, 6), (48, 104, 208, 440)),
    "600mf": ("006", (1, 3, 7, 4), (48, 112, 256, 608)),
    "800mf": ("008", (1, 3, 8, 2), (64, 128, 320, 768)),
    "1600mf": ("016", (2, 6, 17, 2), (48, 120, 336, 888)),
    "3200mf": ("032", (2, 5, 13, 1), (72, 216, 576, 1512)),
    "4gf": ("040", (2, 6, 12, 2), (128, 192, 512, 1088)),
    "6400mf": ("064", (2, 7, 14, 2), (144, 288, 576, 1296)),
    "8gf": ("080", (2, 4, 10, 1), (168, 448, 896, 2016)),
    "12gf": ("120", (2, 5, 11, 1), (224, 448, 896, 2240)),
    "16gf": ("160", (2, 4, 11, 1), (224, 448, 1232, 3024)),
    "32gf": ("320", (2, 5, 12, 1), (232, 696, 1392, 3712)),
    "800mf_tv": ("008_tv", (1, 3, 8, 2), (64, 144, 320, 784)),
    "8gf_tv": ("080_tv", (2, 4, 10, 1), (224, 448, 896, 2016)),
}


def test_every_published_network_is_a_variant() -> None:
    ours = {name for name, cfg in models.VARIANTS.items() if isinstance(cfg, RegNetConfig)}
    assert ours == {f"regnety_{name}" for name in PUBLISHED}
    rows = {name for name in TABLE if name.startswith("regnety_")}
    assert rows == {f"regnety_{name}" for name, _, _ in PUBLISHED.values()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_stages(name: str) -> None:
    cfg = models.variant(f"regnety_{name}")
    made, (_, depths, widths) = stages(cfg), PUBLISHED[name]
    assert tuple(stage.depth for stage in made) == depths
    assert tuple(stage.width for stage in made) == widths
    assert all(stage.width == stage.groups * cfg.group_width for stage in made)


def small(**fields: Any) -> RegNetConfig:
    return dataclasses.replace(TINY["regnet"], **{"zero_init_last": False, **fields})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"w0": 12}, r"model.w0=12 must be a multiple of 8"),
        ({"w0": 0}, (RANGE, "model.w0")),
        ({"wa": -1.0}, (RANGE, "model.wa")),
        ({"wm": 1.0}, (RANGE, "model.wm")),
        ({"depth": 0}, (RANGE, "model.depth")),
        ({"group_width": 0}, (RANGE, "model.group_width")),
        ({"stem_width": 0}, (RANGE, "model.stem_width")),
        ({"se_ratio": 1.5}, (RANGE, "model.se_ratio")),
        ({"se_ratio": 0.05}, r"model.se_ratio=0.05 leaves nothing of the narrowest"),
        ({"group_min_ratio": -0.1}, r"model.group_min_ratio=-0.1"),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
        ({"dropout_rate": -0.5}, (RANGE, "model.dropout_rate")),
        ({"image_size": (1, 2, 3)}, ("models.base.pair", "model.image_size")),
    ],
    ids=lambda x: "-".join(f"{k}={v}" for k, v in x.items()) if isinstance(x, dict) else "",
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))
