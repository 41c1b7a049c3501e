# SPDX-License-Identifier: Apache-2.0
"""Folders of images and masks: what is read, and what is refused in one line."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_by
from tests.shapes import NAMES, write_shapes
from vit_jax.data.sources.masks import open_masks
from vit_jax.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_shapes(tmp_path / "shapes", {"train": 4, "val": 2})


def test_a_split_is_read(root: Path) -> None:
    source = open_masks(str(root), "train")
    assert len(source) == 4
    assert source.class_names == NAMES
    assert source.name == f"{root}[train]"
    for index, size in enumerate([(48, 48), (40, 56), (60, 45), (48, 48)]):
        image, mask = source.read(index, 3)
        assert image.shape == (*size, 3)
        assert mask.shape == size
        classes = set(np.unique(mask).tolist())  # whatever the palette
        assert {0, 255} < classes <= {0, 1, 2, 3, 255}
        assert len(classes) == 3
    assert source.read(0, 1)[0].shape == (48, 48, 1)
    sliced = open_masks(str(root), "train[1:3]+val")
    assert [path.name for path in sliced.paths] == ["01.jpg", "02.jpg", "00.jpg", "01.jpg"]
    (root / "classes.txt").unlink()
    assert open_masks(str(root), "val").class_names == ()


def test_other_layouts_are_refused(root: Path) -> None:
    def refused(split: str = "train", path: Path = root) -> str:
        with pytest.raises(UserError) as error:
            open_masks(str(path), split).read(0, 3)
        text = str(error.value)
        assert len(text.splitlines()) == 1
        return text

    with refused_by("data.sources.partition.absolute_slices"):
        open_masks(str(root), "trian")
    assert "holds no folders images and masks; expected" in refused(path=root / "images")
    first = root / "masks" / "train" / "00.png"
    Image.new("L", (5, 5)).save(first)
    assert "00.jpg is 48x48, its mask 5x5" in refused()
    Image.new("RGB", (48, 48)).save(first)
    assert "00.png: holds colours, and no class ids of one channel" in refused()
    first.write_bytes(b"no image")
    assert "00.png: " in refused()
    first.unlink()
    assert f"00.jpg has no mask {first}" in refused()
    shutil.rmtree(root / "images")
    (root / "images" / "train").mkdir(parents=True)
    assert "has no split with images" in refused()
