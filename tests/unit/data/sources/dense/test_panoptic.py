# SPDX-License-Identifier: Apache-2.0
"""Panoptic JSON with its PNGs: things and stuff, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.counted import account
from vit_jax import data
from vit_jax.errors import UserError

SIZE = (10, 12)


def write(folder: Path, count: int = 4, **changes: Any) -> None:
    """Write images with sky (stuff), two cats (things), and void; ids of 1, 2 and 3 bytes."""
    segments = [
        {"id": 7, "category_id": 9, "iscrowd": 0},
        {"id": 600, "category_id": 5, "iscrowd": 0},
        {"id": 70000, "category_id": 5, "iscrowd": 1},
    ]
    ids = np.full(SIZE, 7)
    ids[2:4, 2:5], ids[5:9, 6:8], ids[0] = 600, 70000, 0
    colours = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
    images, annotations = [], []
    for name in ("pictures", "panoptic"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (12, 10), (40 * i, 0, 0)).save(folder / "pictures" / f"{i}.png")
        Image.fromarray(colours).save(folder / "panoptic" / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "height": 10, "width": 12})
        annotations.append({"image_id": i, "file_name": f"{i}.png", "segments_info": segments})
    kinds = [{"id": 5, "name": "cat", "isthing": 1}, {"id": 9, "name": "sky", "isthing": 0}]
    tree = {"images": images, "annotations": annotations, "categories": kinds, **changes}
    (folder / "panoptic.json").write_text(json.dumps(tree))


def test_things_and_stuff(tmp_path: Path) -> None:
    write(tmp_path)
    name = f"coco:{tmp_path}/panoptic.json?images=pictures"
    source = data.open_source(name, split="whole")
    assert source.class_names == ("cat", "sky")
    assert getattr(source, "things") == (True, False)  # noqa: B009  (not in the protocol)
    target = data.target_of(source, 1)
    assert target.classes.tolist() == [1, 0, 0]
    assert target.crowd.tolist() == [False, False, True]
    assert target.boxes.tolist() == [[0, 1, 12, 10], [2, 2, 5, 4], [6, 5, 8, 9]]
    assert target.masks.sum((1, 2)).tolist() == [108 - 14, 6, 8]
    pixels = data.open_source(name, split="whole", target="pixels")
    found = data.target_of(pixels, 1).label_map
    assert {k: int((found == k).sum()) for k in (-1, 0, 1)} == {-1: 12, 0: 14, 1: 94}


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 9)
    pngs = tmp_path / "panoptic"
    tree = json.loads((tmp_path / "panoptic.json").read_text())
    tree["annotations"].append({**tree["annotations"][8], "image_id": 99})
    (tmp_path / "panoptic.json").write_text(json.dumps(tree))
    (pngs / "0.png").unlink()
    Image.new("RGB", (5, 5)).save(pngs / "1.png")
    Image.new("RGB", (12, 10), (3, 0, 0)).save(pngs / "2.png")
    (pngs / "3.png").write_bytes(b"no image")
    Image.new("RGB", (12, 10), (7, 0, 0)).save(pngs / "4.png")
    source = data.open_source(f"coco:{tmp_path}/panoptic.json?images=pictures", split="whole")
    assert len(source) == 5
    for why in (
        "1 without a mask (0.png)",
        "1 with a mask of another size (1.png)",
        "1 with pixels of segments that the JSON does not list (2.png)",
        "1 with a mask that cannot be read (3.png)",
    ):
        assert why in account(source).why_left_out()
    notes = account(source).notes
    assert "2 segments are empty, and left out (first: 4.png)" in notes
    assert "panoptic.json: 1 annotation is of no image that is used" in notes


def test_names_and_categories_are_checked(tmp_path: Path) -> None:
    base = {"image_id": 0, "file_name": "0.png", "segments_info": []}
    unknown = {**base, "segments_info": [{"id": 1, "category_id": 4}]}
    for annotation, why in (
        ({**base, "file_name": "../0.png"}, "is not followed"),
        (unknown, "1 segments have a category_id that categories do not list"),
        ({**base, "segments_info": [{"id": 1, "category_id": [5]}]}, "do not list ([5])"),
        ({**base, "segments_info": 3}, "has no segments_info"),
        ({**base, "segments_info": [{"category_id": 5}]}, "has no id"),
    ):
        write(tmp_path, annotations=[annotation])
        with pytest.raises(UserError) as error:
            data.open_source(f"coco:{tmp_path}/panoptic.json?images=pictures")
        assert why in str(error.value)
        assert len(str(error.value).splitlines()) == 1
    write(tmp_path)
    (tmp_path / "panoptic").rename(tmp_path / "other")
    with pytest.raises(UserError, match="say where it is, coco:FILE"):
        data.open_source(f"coco:{tmp_path}/panoptic.json?images=pictures")
    name = f"coco:{tmp_path}/panoptic.json?images=pictures&masks=other"
    assert len(data.open_source(name, split="whole")) == 4
