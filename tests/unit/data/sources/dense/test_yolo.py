# SPDX-License-Identifier: Apache-2.0
"""YOLO's text files: boxes and polygons in shares of an image, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.counted import account
from vit_jax import data
from vit_jax.errors import UserError

BOX = "1 0.5 0.5 0.25 0.4\n"
POLYGON = "0 0.0 0.0 0.5 0.0 0.5 0.5 0.0 0.5\n"
YAML = (
    "path: /somewhere/else\ntrain: ../train/images\nval: valid/images\nnc: 2\nnames: [bee, ant]\n"
)


def write(root: Path, text: str, yaml: str = YAML) -> Path:
    for split, count in (("train", 4), ("valid", 2)):
        for kind in ("images", "labels"):
            (root / split / kind).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("RGB", (40, 20), (40 * i, count, 0)).save(root / split / f"images/{i}.png")
            (root / split / f"labels/{i}.txt").write_text(text)
    if yaml:
        (root / "data.yaml").write_text(yaml)
    return root


def test_boxes_are_shares(tmp_path: Path) -> None:
    root = write(tmp_path, BOX + "0 0.95 0.5 0.2 0.1\n0 0.5 0.5 0 0.1\n0 1.5 0.5 0.1 0.1\n")
    (root / "train/labels/3.txt").unlink()
    (root / "train/labels/9.txt").write_text(BOX)
    for name in (f"yolo:{root}", f"yolo:{root}/data.yaml"):
        source = data.open_source(name, split="validation")
        assert (len(source), source.class_names) == (2, ("bee", "ant"))
        target = data.target_of(source, 1)
        np.testing.assert_allclose(target.boxes, [[15, 6, 25, 14], [34, 9, 40, 11]], rtol=1e-6)
        assert target.classes.tolist() == [1, 0]
        assert target.masks is None
    said = "1 of 6 images have no file of labels, and no segments"
    assert said in account(source).said
    notes = account(source).notes
    for line in (
        "1 file of labels has no image (first: train/labels/9.txt)",
        "5 boxes are empty, and left out (first: train/images/0.png)",
        "5 boxes are wholly outside of their image, and left out (first: train/images/0.png)",
        "5 boxes are partly outside of their image, and clipped (first: train/images/0.png)",
    ):
        assert line in notes
    assert account(source).used == {"train": 4, "val": 2}
    with pytest.raises(UserError, match="which say nothing of the class of each pixel"):
        data.open_source(f"yolo:{root}", target="pixels")


def test_polygons_are_masks(tmp_path: Path) -> None:
    root = write(tmp_path, POLYGON, yaml="")
    (root / "classes.txt").write_text("bee\nant\n")
    source = data.open_source(f"yolo:{root}", split="train")
    assert account(source).used == {"train": 4, "valid": 2}
    target = data.target_of(source, 0)
    assert target.boxes.tolist() == [[0, 0, 20, 10]]
    assert target.masks.sum() == 200
    assert target.masks[0, :10, :20].all()
    pixels = data.open_source(f"yolo:{root}", split="train", target="pixels")
    assert pixels.class_names == ("bee", "ant", "background")
    assert (data.target_of(pixels, 0).label_map == 0).sum() == 200


def test_classes_are_listed_among_the_labels_too(tmp_path: Path) -> None:
    for name, others in (("same", "bee\nant\n"), ("other", "ant\nbee\n")):
        root = write(tmp_path / name, BOX, yaml="")
        (root / "train/labels/classes.txt").write_text("bee\nant\n")
        (root / "valid/labels/classes.txt").write_text(others)
    root = tmp_path / "same"
    (root / "classes.txt").write_text("bee\nant\n")
    Image.new("RGB", (40, 20)).save(root / "valid/images/classes.png")
    (root / "valid/labels/classes.txt").write_text(BOX)  # those of that image
    source = data.open_source(f"yolo:{root}", split="train")
    assert source.class_names == ("bee", "ant")
    assert account(source).used == {"train": 4, "valid": 3}
    assert not [line for line in account(source).notes if "no image" in line]
    told = "train/labels/classes.txt and valid/labels/classes.txt name other classes"
    with pytest.raises(UserError, match=told):
        data.open_source(f"yolo:{tmp_path}/other", split="train")


def test_what_is_no_label_is_refused(tmp_path: Path) -> None:
    for number, (text, yaml, why) in enumerate(
        (
            ("0 1 2 3\n", YAML, "6 of 6 files of labels cannot be read (first: train/labels/0"),
            ("0 a b c d\n", YAML, "line 1 has a word that is no number"),
            ("-1 0 0 1 1\n", YAML, "line 1 has no class id"),
            ("7 0 0 1 1\n", YAML, "6 of 6 files of labels have a class above the 2 that are"),
            (BOX, YAML.replace("nc: 2", "nc: 3"), "nc is 3, and names has 2"),
            (BOX, "names: {1: a}", "names must have each id from 0 to 0"),
            (BOX, "- a", "is no YAML of names and splits"),
            (BOX, "train: images", "names no classes; write data.yaml with names"),
            (BOX, YAML.replace("../train", "../../x"), "is not followed"),
            (BOX, YAML.replace("../train/images", "train.txt"), "train must be a folder"),
            (BOX, YAML.replace("train/images", "other").replace("valid/", "o"), "has no images"),
        )
    ):
        root = write(tmp_path / str(number), text, yaml)
        with pytest.raises(UserError, match=re.escape(why)) as error:
            data.open_source(f"yolo:{root}")
        assert len(str(error.value).splitlines()) == 1
