# SPDX-License-Identifier: Apache-2.0
"""Depth maps of 16 bits, floats and arrays: their unit, and what is not known."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.counted import account
from vit_jax import data
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError

SIZE = (6, 8)


def write(root: Path, array: np.ndarray, end: str, count: int = 3) -> None:
    for kind in ("images", "depth"):
        (root / kind / "train").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (8, 6), (40 * i, 0, 0)).save(root / "images/train" / f"{i}.png")
        path = root / "depth/train" / f"{i}{end}"
        if end == ".npy":
            np.save(path, array)
        else:
            Image.fromarray(array).save(path)


def found(root: Path, more: str = "") -> tuple[np.ndarray, tuple[str, ...]]:
    source = data.open_source(f"depth:{root}{more}", split="train")
    assert data.target_kind(source) is TargetKind.DEPTH
    assert (source.num_classes, len(source)) == (0, 3)
    depth = data.target_of(source, 1).depth
    assert depth is not None
    assert depth.dtype == np.float32
    assert account(source).line().startswith("depth maps in 1 split (train 3); all 3")
    return depth, account(source).said


def test_numbers_have_a_unit(tmp_path: Path) -> None:
    stored = np.arange(48, dtype=np.uint16).reshape(SIZE) * 100
    write(tmp_path, stored, ".png")
    depth, notes = found(tmp_path)
    np.testing.assert_allclose(depth, stored / 1000, rtol=1e-6)
    said = "depth of 16 bits is taken as millimetres; ?scale= says otherwise"
    assert notes == (said, "depth is from 0.1 to 4.7")
    depth, notes = found(tmp_path, "?scale=0.00390625")
    np.testing.assert_allclose(depth, stored / 256, rtol=1e-6)
    assert notes == ("depth is from 0.3906 to 18.36",)


def test_floats_are_as_they_are(tmp_path: Path) -> None:
    stored = np.linspace(0.5, 9, 48, dtype=np.float32).reshape(SIZE)
    stored[0, :4] = [np.nan, np.inf, -1, 0]
    for end in (".tif", ".npy"):
        write(tmp_path / end, stored, end)
        depth, notes = found(tmp_path / end)
        assert depth[0, :4].tolist() == [0, 0, 0, 0]
        np.testing.assert_array_equal(depth[1:], stored[1:])
        assert len(notes) == 1


def test_maps_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, np.full(SIZE, 1000, np.uint16), ".png", 9)
    folder = tmp_path / "depth/train"
    Image.fromarray(np.ones((5, 5), np.uint16)).save(folder / "0.png")
    Image.fromarray(np.zeros(SIZE, np.uint16)).save(folder / "1.png")
    Image.new("RGB", (8, 6)).save(folder / "2.png")
    (folder / "3.png").unlink()
    source = data.open_source(f"depth:{tmp_path}", split="train")
    assert len(source) == 5
    for why in (
        "1 with a depth map of another size (images/train/0.png)",
        "1 without a pixel whose depth is known (images/train/1.png)",
        "1 with a depth map that cannot be read (images/train/2.png)",
        "1 without a depth map (images/train/3.png)",
    ):
        assert why in account(source).why_left_out()


def test_what_has_no_unit_is_refused(tmp_path: Path) -> None:
    write(tmp_path, np.full(SIZE, 100, np.uint8), ".png")
    for more, why in (
        ("", "3 depth maps have 8 bits (first: "),
        ("?scale=0", "give a number above 0"),
        ("?scale=one", "give a number above 0"),
        ("?ids=1", "has no ?ids=; it has ?scale="),
    ):
        with pytest.raises(UserError, match=re.escape(why)):
            data.open_source(f"depth:{tmp_path}{more}", split="train")
    assert found(tmp_path, "?scale=0.1")[0].max() == np.float32(10)
    np.save(tmp_path / "depth/train/1.npy", np.ones(SIZE, np.float32))
    with pytest.raises(UserError, match="one depth map in two formats"):
        data.open_source(f"depth:{tmp_path}", split="train")
    (tmp_path / "depth/train/1.png").unlink()
    with pytest.raises(UserError, match="has floats and whole numbers"):
        data.open_source(f"depth:{tmp_path}?scale=0.1", split="train")
