# SPDX-License-Identifier: Apache-2.0
"""Masks, depth maps and objects in columns of Parquet files, as the Hub's datasets have them."""

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.counted import account
from vit_jax import data
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError


def png(array: np.ndarray) -> dict[str, Any]:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def write(path: Path, features: dict[str, Any] | None = None, **columns: list[Any]) -> str:
    """Write a table with a column of images and others; returns its name."""
    count = len(next(iter(columns.values())))
    images = [png(np.full((6, 8, 3), 20 * i, np.uint8)) for i in range(count)]
    table = pa.table({"image": images, **columns})
    if features is not None:
        told = json.dumps({"info": {"features": {"image": {"_type": "Image"}, **features}}})
        table = table.replace_schema_metadata({"huggingface": told})
    pq.write_table(table, path, row_group_size=2)
    return f"parquet:{path}"


def mask(i: int) -> np.ndarray:
    found = np.full((6, 8), i % 3, np.uint8)
    found[0] = 255
    return found


def test_masks_in_a_column(tmp_path: Path) -> None:
    name = write(tmp_path / "train.parquet", mask=[png(mask(i)) for i in range(5)])
    (tmp_path / "classnames.txt").write_text("sky\nsea\nland\n")
    assert not data.target_kind(data.open_source(name))
    for source in (data.open_source(name, target="pixels"), data.open_source(f"{name}?mask=mask")):
        assert data.target_kind(source) is TargetKind.PIXELS
        assert (source.class_names, len(source)) == (("sky", "sea", "land"), 5)
        found = data.target_of(pickle.loads(pickle.dumps(source)), 4).label_map
        assert found[:2, 0].tolist() == [-1, 1]
        assert source.read(0)["label"] == -1
    with pytest.raises(UserError, match="has no column such as depth"):
        data.open_source(name, target="depth")
    with pytest.raises(UserError, match="has a class for each pixel, and not a depth"):
        data.open_source(f"{name}?mask=mask", target="depth")
    with pytest.raises(UserError, match="unknown column of"):
        data.open_source(f"{name}?mask=masks")
    with pytest.raises(UserError, match=re.escape("has no ?zero= without ?mask=")):
        data.open_source(f"{name}?zero=ignore")
    with pytest.raises(UserError, match=re.escape("?scale= does nothing for ?mask=")):
        data.open_source(f"{name}?mask=mask&scale=2")


def test_rows_without_a_mask_that_fits_are_left_out(tmp_path: Path) -> None:
    rows = [png(mask(i)) for i in range(6)]
    rows[0], rows[1] = {"bytes": None, "path": "x.png"}, png(np.zeros((3, 3), np.uint8))
    name = write(tmp_path / "train.parquet", annotation=rows)
    source = data.open_source(name, target="pixels")
    assert (len(source), source.class_names) == (4, ("0", "1", "2"))
    (note,) = [line for line in account(source).notes if "left out" in line]
    assert "2 of 6 rows" in note
    assert "1 without a mask" in note
    assert "1 with a mask of another size" in note
    (tmp_path / "classnames.txt").write_text("sky\nsea\n")
    with pytest.raises(UserError, match="2 of 6 masks have pixels of class 2; ids of classes are"):
        data.open_source(name, target="pixels")


def test_depth_in_a_column(tmp_path: Path) -> None:
    stored = np.full((6, 8), 1500, np.uint16)
    name = write(tmp_path / "train.parquet", depth_map=[png(stored) for _ in range(3)])
    source = data.open_source(name, target="depth")
    assert source.class_names == ()
    np.testing.assert_allclose(data.target_of(source, 1).depth, 1.5)
    scaled = data.open_source(f"{name}?depth=depth_map&scale=0.01")
    np.testing.assert_allclose(data.target_of(scaled, 1).depth, 15)
    assert "depth is from 1.5 to 1.5" in account(source).said


def test_depth_in_a_column_is_judged_as_in_files(tmp_path: Path) -> None:
    stored = [np.full((6, 8), 150 * i, np.uint8) for i in range(2)]
    name = write(tmp_path / "train.parquet", depth=[png(each) for each in stored])
    with pytest.raises(UserError, match=r"1 depth maps have 8 bits .*train.parquet row 1"):
        data.open_source(name, target="depth")
    source = data.open_source(f"{name}?depth=depth&scale=0.1")
    assert len(source) == 1
    assert "1 without a pixel whose depth is known" in account(source).notes[-1]
    np.testing.assert_allclose(data.target_of(source, 0).depth, 15, rtol=1e-6)


def test_objects_are_boxes_of_classes(tmp_path: Path) -> None:
    objects = [
        {"bbox": [[1.0, 1.0, 3.0, 2.0], [0.0, 0.0, 8.0, 6.0]], "category": [1, 0]},
        {"bbox": [[6.0, 1.0, 4.0, 2.0]], "category": [1]},
        {"bbox": [], "category": []},
    ]
    kinds = {
        "bbox": {"_type": "Sequence"},
        "category": {"_type": "ClassLabel", "names": ["a", "b"]},
    }
    features = {"objects": {"feature": kinds, "_type": "Sequence"}}
    name = write(tmp_path / "train.parquet", features, objects=objects)
    source = data.open_source(name, target="segments")
    assert source.class_names == ("a", "b")
    target = data.target_of(source, 0)
    assert target.boxes.tolist() == [[1, 1, 4, 3], [0, 0, 8, 6]]
    assert target.classes.tolist() == [1, 0]
    assert data.target_of(source, 2).boxes.shape == (0, 4)
    assert any(
        "1 box is partly outside of its image, and clipped" in x for x in account(source).notes
    )
    corners = [{"bbox": [[5.0, 3.0, 8.0, 6.0]], "category": ["dog"]}] * 3
    name = write(tmp_path / "val.parquet", objects=corners)
    source = data.open_source(name, split="val", target="segments")
    assert source.class_names == ("dog",)
    assert data.target_of(source, 0).boxes.tolist() == [[5, 3, 8, 6]]
    assert any("boxes are (left, top, right, bottom)" in line for line in account(source).said)
    name = write(tmp_path / "test.parquet", objects=[{"bbox": [[1.0]], "category": [1]}])
    with pytest.raises(UserError, match="have no lists of bbox and category of one length"):
        data.open_source(name, split="test", target="segments")
