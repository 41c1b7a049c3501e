# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt: published sizes, grids, stems, bad configs; the authors' files, those without head."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.refusals import RANGE, Told, refused_as
from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.models import ConvNeXtConfig
from vit_jax.models.families import convnext
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.names import timm as timm_names

GOLDEN = Path(__file__).parents[3] / "golden"
SMALL: ConvNeXtConfig = TINY["convnext"]


def test_every_variant_is_compared_with_timms_counts() -> None:
    counts = json.loads((GOLDEN / "backbone_counts.json").read_text())
    assert {name for name in counts if name.startswith("convnext")} == set(convnext.FAMILY.variants)


def test_grids_and_widths_of_stems() -> None:
    odd = {"image_size": (37, 41), "depths": (1, 1), "widths": (8, 8)}
    for stem, grid in (("patch", (9, 10)), ("overlap", (10, 11))):
        cfg = models.variant("convnext_t", stem=stem, **odd)
        assert convnext.FAMILY.grids(cfg, (37, 41)) == [grid, (grid[0] // 2, grid[1] // 2)]
        out = jax.eval_shape(
            models.create(cfg).apply, models.abstract(cfg), np.zeros((1, 37, 41, 3), np.float32)
        )
        assert out.tokens.shape == (1, (grid[0] // 2) * (grid[1] // 2), 8)
    # timm's make_divisible: multiples of 8, not below nine tenths.
    assert [convnext._half(width) for width in (40, 48, 64, 80, 10, 22)] == [24, 24, 32, 40, 8, 16]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"depths": (1,)}, "need a number for each stage"),
        ({"depths": (), "widths": ()}, "need a number for each stage"),
        ({"depths": (1, 0)}, (RANGE, "model.depths")),
        ({"image_size": (7, 40)}, "2 stages leave nothing of it; give at least 8 pixels a side"),
        ({"norm_first": True, "pre_logits_dim": 8}, "norm_first has no model.pre_logits_dim"),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
        ({"layer_scale": -1.0}, (RANGE, "model.layer_scale")),
        ({"stem": "tiered"}, "model.stem"),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(models.with_fields(SMALL, fields))


def drawn(cfg: ConvNeXtConfig) -> Any:
    rng = np.random.default_rng(0)
    shapes = models.abstract(cfg)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


def as_authors(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Name timm's tensors as facebookresearch/ConvNeXt-V2 does, in its shapes."""
    found = {}
    for key, value in state.items():
        new = re.sub(r"^stem\.", "downsample_layers.0.", key)
        new = re.sub(r"^stages\.(\d+)\.downsample\.", r"downsample_layers.\1.", new)
        new = re.sub(r"\.blocks\.(\d+)\.", r".\1.", new)
        new = new.replace(".conv_dw.", ".dwconv.").replace(".mlp.fc", ".pwconv")
        new = new.replace("head.norm.", "norm.").replace("head.fc.", "head.")
        new = new.replace(".mlp.grn.weight", ".grn.gamma").replace(".mlp.grn.bias", ".grn.beta")
        if ".grn." in new:
            value = value.reshape(1, 1, 1, -1)
        elif "pwconv" in new:
            value = value.reshape(value.shape[: 2 if value.ndim > 1 else 1])
        found[new] = value
    return found


def read_of(state: dict[str, np.ndarray], cfg: ConvNeXtConfig) -> dict[str, np.ndarray]:
    """Read a file of these tensors, as "timm:" does."""
    entries = timm_names.entries(cfg)
    return fill(entries, timm_names.with_timm_names(in_memory(state), cfg, entries))


def test_files_of_the_authors_and_of_timm_are_one() -> None:
    for fields in ({}, {"conv_mlp": True}, {"layer_scale": 0.0, "norm": "rms"}):
        cfg = models.with_fields(SMALL, fields)
        variables = drawn(cfg)
        entries = timm_names.entries(cfg)
        state = {}
        for entry in entries:
            value = dict(trees.named_leaves(variables))[entry.name]
            for parts, layer in zip(entry.layers, value if entry.stacked else [value], strict=True):
                state |= dict(zip([p.key for p in parts], entry.encode(layer), strict=True))
        fc1 = state["stages.0.blocks.0.mlp.fc1.weight"]
        assert fc1.shape == ((32, 8, 1, 1) if cfg.conv_mlp else (32, 8))
        # DINOv3's authors name the last norm twice; what FCMAE leaves has none.
        twice = as_authors(state) | {"norms.3.weight": state["head.norm.weight"]}
        for given in (state, as_authors(state), twice):
            found = trees.nest(read_of(given, cfg))
            jax.tree.map(np.testing.assert_array_equal, found, variables)
        bare = dataclasses.replace(cfg, num_classes=0)
        rest = {key: value for key, value in state.items() if not key.startswith("head.")}
        read = read_of(rest, bare)
        np.testing.assert_array_equal(read["params/norm/scale"], np.ones(16))
        assert ("params/norm/bias" in read) == (cfg.norm == "layer")
