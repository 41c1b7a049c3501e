# SPDX-License-Identifier: Apache-2.0
"""Each pixel of a drawn target has the number by which it is coloured."""

from pathlib import Path

import numpy as np
import pytest

from tests import dense_sets
from vit_jax import data, models, objectives
from vit_jax.config.tree import Config
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.targets import DEPTH, LABEL_MAP, SEGMENT_CLASS, SEGMENTS
from vit_jax.figures.contact_sheet import Tile
from vit_jax.figures.masks import over
from vit_jax.objectives import SegmentConfig
from vit_jax.visual import target_sheets
from vit_jax.visual.target_sheets import numbers_of


def test_numbers_of_every_kind() -> None:
    label_map = np.array([[-1, 2], [0, 1]], np.int16)
    np.testing.assert_array_equal(numbers_of({LABEL_MAP: label_map}), label_map)
    masks = np.zeros((3, 2, 8), bool)
    masks[0, :, :4] = masks[1, 0] = masks[2] = True
    bits, classes = np.packbits(masks, axis=-1), np.array([5, 7, -1])
    found = numbers_of({SEGMENTS: bits, SEGMENT_CLASS: classes})
    # The later lies over the earlier, and what has no class is nothing.
    np.testing.assert_array_equal(found, [[1] * 8, [0] * 4 + [-1] * 4])
    depth = np.array([[0, 1.0], [2.0, 3.0]], np.float32)
    np.testing.assert_array_equal(numbers_of({DEPTH: depth}), [[-1, 0], [8, 15]])


def test_a_sheet_has_a_row_of_draws_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = dense_sets.write_masks(tmp_path / "set")
    cfg = Config(
        model=models.variant("vit_mu8", num_classes=0, image_size=(16, 16), patch=(8, 8)),
        data=DataConfig(name=name, transform=TransformConfig(crop=Crop.RESIZE)),
        objective=SegmentConfig(frozen=False, num_classes=3),
        duration="1 steps",
    )
    source = data.open_source(name, target="pixels")
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    drawn: list[list[Tile]] = []
    monkeypatch.setattr(target_sheets, "render", lambda rows, title: drawn.extend(rows) or b"png")
    assert target_sheets.transform_sheet(cfg, objective, source, 2) == b"png"
    assert [len(row) for row in drawn] == [2] * 4
    stream = data.train_batches(
        source, cfg.data, views=objective.views, fields=objective.fields, seed=cfg.seed
    )
    with stream:
        first = next(stream)
    for row, image, label_map in zip(drawn, first["image"], first[LABEL_MAP], strict=False):
        for tile in row:  # nothing is drawn at random here
            np.testing.assert_array_equal(tile.image, over(image, label_map.astype(np.int32)))
