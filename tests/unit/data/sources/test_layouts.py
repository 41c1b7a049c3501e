# SPDX-License-Identifier: Apache-2.0
"""A folder's files tell what is to be learned of it."""

from pathlib import Path

import pytest

from vit_jax.data import full_name
from vit_jax.data.sources.dense import layout_of
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError

COCO = '{"images": [{"id": 1}], "annotations": [], "categories": []}'


def write(root: Path, *paths: str, text: str = "") -> str:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def test_each_layout_is_known_by_its_files(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows = {
        "classes": ("folder", ("train/cat/1.jpg", "val/cat/2.jpg", "train/notes.json")),
        "one class": ("folder", ("images/1.jpg", "labels/1.jpg")),
        "masks": ("masks", ("images/train/1.jpg", "masks/train/1.png")),
        "annotations": ("masks", ("images/1.jpg", "annotations/1.png")),
        "splits above": ("masks", ("train/images/1.jpg", "train/masks/1.png", "val/images/2.jpg")),
        "depth": ("depth", ("images/val/1.jpg", "depth/val/1.npy")),
        "voc": ("voc", ("JPEGImages/1.jpg", "Annotations/1.xml", "SegmentationClass/1.png")),
        "beside": ("voc", ("train/1.jpg", "train/1.xml")),
        "yolo": ("yolo", ("images/train/1.jpg", "labels/train/1.txt")),
        "yaml": ("yolo", ("train/images/1.jpg", "train/labels/1.txt", "data.yaml")),
    }
    for name, (kind, paths) in rows.items():
        with subtests.test(name):
            root = write(tmp_path / name, *paths)
            assert full_name(root) == f"{kind}:{root}"
            assert full_name(f"{root}?split_seed=2") == f"{kind}:{root}?split_seed=2"
            assert full_name(f"folder:{root}") == f"folder:{root}"
    for name, place in (("annotations", "annotations/instances.json"), ("files", "train/a.json")):
        root = write(tmp_path / "coco" / name, "images/1.jpg")
        write(Path(root), place, text=COCO)
        assert layout_of(root) == (f"coco:{root}", TargetKind.SEGMENTS, "images and COCO's JSON")
        assert full_name(f"{root}/{place}?images=x") == f"coco:{root}/{place}?images=x"
    assert layout_of("digits").kind is TargetKind.NONE
    assert full_name("photos/data.yaml") == "yolo:photos/data.yaml"


def test_two_layouts_in_one_folder_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path, "images/1.jpg", "masks/1.png", "labels/1.txt")
    with pytest.raises(UserError) as error:
        full_name(root)
    both = f"images and masks (masks:{root}) and images and YOLO's text files (yolo:{root})"
    assert f"{root} holds {both}; name the one that is meant, masks:{root}" in str(error.value)
    assert full_name(f"yolo:{root}") == f"yolo:{root}"
