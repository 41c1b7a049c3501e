# SPDX-License-Identifier: Apache-2.0
"""Folders of images and masks: what is read, and what is refused in one line."""

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.counted import account
from tests.refusals import refused_by
from tests.shapes import NAMES, write_shapes
from vit_jax.data.images import bands
from vit_jax.data.sources.base import CachedSource, Sample, target_kind, target_of
from vit_jax.data.sources.dense.depth import read_depth
from vit_jax.data.sources.dense.ids import read_mask
from vit_jax.data.sources.dense.masks import open_masks, pixels_of
from vit_jax.data.targets import TargetKind
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
        image, mask = pixels_of(source, index, 3)
        assert image.shape == (*size, 3)
        assert mask.shape == size
        classes = set(np.unique(mask).tolist())  # whatever the palette
        assert {0, 255} < classes <= {0, 1, 2, 3, 255}
        assert len(classes) == 3
    assert pixels_of(source, 0, 1)[0].shape == (48, 48, 1)
    sliced = open_masks(str(root), "train[1:3]+val")
    names = [Path(sliced.path(i)).name for i in range(len(sliced))]
    assert names == ["01.jpg", "02.jpg", "00.jpg", "01.jpg"]
    (root / "classes.txt").unlink()
    assert open_masks(str(root), "val").class_names == ("0", "1", "2", "3")


def test_other_layouts_are_refused(root: Path) -> None:
    def refused(split: str = "train", path: Path = root, more: str = "") -> str:
        with pytest.raises(UserError) as error:
            open_masks(f"{path}{more}", split)
        text = str(error.value)
        assert len(text.splitlines()) == 1
        return text

    with refused_by("data.sources.partition.absolute_slices"):
        open_masks(str(root), "trian")
    assert "holds no folders images and masks; expected" in refused(path=root / "images")
    assert "has no ?scale=; it has ?ignore=" in refused(more="?scale=2")
    (root / "classes.txt").write_text("texture\ncircle\n")
    told = refused()
    assert "of 6 masks have pixels of class 3 (first: " in told
    assert "classes.txt names 2; ids of classes are 0 to 1; name all" in told
    (root / "masks/train/00.tif").write_bytes(b"")
    assert "are one mask in two formats; keep one of them" in refused()
    (root / "masks/train/00.tif").unlink()
    shutil.rmtree(root / "images")
    (root / "images" / "train").mkdir(parents=True)
    assert "there are no images" in refused()


def test_what_has_no_mask_that_fits_is_counted(root: Path) -> None:
    first = root / "masks" / "train" / "00.png"

    def told() -> str:
        source = open_masks(str(root), "train")
        assert len(source) == 3
        assert account(source).found == 6
        return account(source).line()

    Image.new("L", (5, 5)).save(first)
    assert "1 of 6 images left out: 1 with a mask of another size (images/train/00.jpg)" in told()
    Image.new("RGB", (48, 48)).save(first)
    assert "1 with a mask of colours, not of ids in one channel or a palette (" in told()
    first.write_bytes(b"no image")
    assert "1 with a mask that cannot be read (images/train/00.jpg)" in told()
    first.unlink()
    assert "1 without a mask (images/train/00.jpg)" in told()
    (root / "images" / "val" / "00.jpg").rename(root / "images" / "val" / "x.jpg")
    source = open_masks(str(root), "train")
    assert account(source).notes == ("1 mask has no image (first: masks/val/00.png)",)
    for path in (root / "masks" / "train").iterdir():
        Image.new("L", (5, 5)).save(path)
    with pytest.raises(UserError, match=r"1 of 4 images can be used .*3 with a mask of another s"):
        open_masks(str(root), "val")
    shutil.rmtree(root / "masks" / "train")
    source = open_masks(str(root), "val")
    assert "5 of 6 images left out: 5 without a mask" in account(source).line()
    shutil.rmtree(root / "masks" / "val")
    with pytest.raises(UserError, match="no image has a mask"):
        open_masks(str(root), "val")


def test_ids_are_what_the_options_say(root: Path) -> None:
    def classes(more: str) -> tuple[tuple[str, ...], set[int]]:
        source = open_masks(f"{root}{more}", "train")
        found = [target_of(source, i).label_map for i in range(4)]
        assert all(each is not None and each.dtype == np.int16 for each in found)
        return source.class_names, {value for each in found for value in np.unique(each).tolist()}

    assert classes("") == (NAMES, {-1, 0, 1, 2, 3})
    (root / "classes.txt").unlink()
    assert classes("?zero=ignore") == (("1", "2", "3"), {-1, 0, 1, 2})
    assert classes("?ignore=0,3,255") == (("0", "1", "2"), {-1, 1, 2})
    assert classes("?ids=0,3,255,2,1") == (("0", "3", "255", "2", "1"), {0, 1, 2, 3, 4})
    for more, why in (
        ("?ids=1,1", "lists an id twice"),
        ("?ids=1&zero=ignore", "do not go together"),
        ("?ignore=many", "give ids from 0 to 65535"),
        ("?zero=1", "it can be ignore alone"),
        ("?ids=1,2&ignore=2", "the id 2 is listed and ignored"),
    ):
        with pytest.raises(UserError, match=re.escape(why)):
            open_masks(f"{root}{more}", "train")
    for path in root.glob("masks/*/*.png"):  # as programs write masks of one object
        mask = Image.open(path)
        Image.fromarray(np.where(np.asarray(mask) > 0, 255, 0).astype(np.uint8)).save(path)
    with pytest.raises(UserError, match=r"0 and 255 alone.*end the name by .ids=0,255"):
        open_masks(str(root), "train")
    assert classes("?ids=0,255") == (("0", "255"), {0, 1})


def test_splits_lie_above_or_are_drawn(root: Path) -> None:
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (root / "other" / split).mkdir(parents=True, exist_ok=True)
            (root / kind / split).rename(root / "other" / split / kind)
    source = open_masks(str(root / "other"), "val")
    assert len(source) == 2
    assert source.class_names == ("0", "1", "2", "3")
    flat = root / "flat"
    (root / "other" / "train").rename(flat)
    drawn = open_masks(f"{flat}?split_seed=1", "whole")
    assert drawn.drawn
    assert len(drawn) == 4
    assert [*account(drawn).used] == ["train", "val", "test"]
    assert drawn.rows()[0] == (str(flat / "images" / "00.jpg"), "")
    part = target_of(drawn, 2)
    for wrapped in (CachedSource(drawn), Sample(drawn, np.array([2], np.int32))):
        assert target_kind(wrapped) is TargetKind.PIXELS
        found = target_of(wrapped, len(wrapped) - 1 if len(wrapped) == 1 else 2)
        np.testing.assert_array_equal(found.label_map, part.label_map)
    assert pickle.loads(pickle.dumps(drawn)).target(2).size == part.size
    with refused_by("data.sources.dense.annotated.unfit"):
        open_masks(str(flat), "whole", TargetKind.DEPTH)


def test_an_array_claims_no_more_than_its_file_has() -> None:
    ids = np.array([[0, 1], [2, 255]], np.uint8)
    assert read_mask(bands.as_file(ids), "a.npy").tolist() == ids.tolist()
    assert read_mask(bands.as_file(ids > 0), "a.npy").tolist() == [[0, 1], [1, 1]]
    with pytest.raises(ValueError, match="holds float32 of 2 axes, and no ids"):
        read_mask(bands.as_file(ids.astype(np.float32)), "a.npy")
    many = bands.as_file(ids).replace(b"(2, 2), }        ", b"(999999, 999999), }")
    for reads in (read_mask, read_depth):
        with pytest.raises(ValueError, match="is cut off"):
            reads(many, "a.npy")


def test_deep_masks_keep_their_ids(tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    for i in range(3):
        Image.new("L", (4, 3), 50 * i).save(tmp_path / "images" / f"{i}.png")
        ids = np.full((3, 4), 300 + i, np.uint16)
        ids[0, 0] = 65535
        Image.fromarray(ids).save(tmp_path / "masks" / f"{i}.png")
    (tmp_path / "classes.txt").write_text("\n".join(f"c{k}" for k in range(303)))
    source = open_masks(str(tmp_path), "whole")
    found = {
        value for i in range(3) for value in np.unique(target_of(source, i).label_map).tolist()
    }
    assert found == {-1, 300, 301, 302}
    with pytest.raises(UserError, match="has 303 classes, and a probe tells at most 255"):
        pixels_of(source, 0, 1)
