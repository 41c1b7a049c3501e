# SPDX-License-Identifier: Apache-2.0
"""`check-data` reads every target, and says what they hold."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.shapes import write_shapes
from vit_jax.__main__ import main
from vit_jax.data import target_counts
from vit_jax.data.targets import PixelTarget, TargetKind


def test_each_kind_has_its_line() -> None:
    pixels = np.array([[0, 0, 1, -1]], np.int16)
    found = [target_counts.count(PixelTarget(size=(1, 4), label_map=pixels)) for _ in range(3)]
    told = target_counts.line(found, TargetKind.PIXELS, ("sky", "sea"))
    assert told == "pixels: 50.0 % sky, 25.0 % sea; 25.0 % ignored"
    boxes, crowd = np.zeros((3, 4), np.float32), np.array([False, True, False])
    some = PixelTarget(size=(1, 4), boxes=boxes, classes=np.array([1, 1, 0], np.int32), crowd=crowd)
    none = PixelTarget(size=(1, 4), boxes=boxes[:0], classes=np.zeros(0, np.int32))
    found = [target_counts.count(each) for each in (some, none)]
    told = target_counts.line(found, TargetKind.SEGMENTS, ("cat", "d\x1bg"))
    assert told == "3 segments in 2 images, 1.5 an image: 2 'd\\x1bg', 1 cat; 1 stand for many"
    depth = np.array([[0, 2, 4, 6]], np.float32)
    found = [target_counts.count(PixelTarget(size=(1, 4), depth=depth))]
    told = target_counts.line(found, TargetKind.DEPTH, ())
    assert told == "depth is known of 75.0 % of the pixels: 2 to 6, mean 4"
    assert target_counts.line([], TargetKind.DEPTH, ()) == ""


def test_targets_that_say_nothing_keep_their_kind() -> None:
    ignored = PixelTarget(size=(1, 4), label_map=np.full((1, 4), -1, np.int16))
    told = target_counts.line([target_counts.count(ignored)], TargetKind.PIXELS, ("sky",))
    assert told == "pixels: all 4 are ignored"
    unknown = PixelTarget(size=(1, 4), depth=np.zeros((1, 4), np.float32))
    told = target_counts.line([target_counts.count(unknown)], TargetKind.DEPTH, ())
    assert told == "depth is known of none of the 4 pixels"


def test_a_dataset_with_masks_is_looked_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_shapes(tmp_path / "shapes", {"train": 4, "val": 2})
    assert main(["vit_jax", "check-data", f"masks:{root}"]) == 0
    out = capsys.readouterr().out
    assert "4 classes in 2 splits (train 4, val 2); all 6 images used" in out
    assert " % texture, " in out
    assert "6 of 6 images can be decoded, and nothing is amiss" in out
    Image.new("L", (5, 5)).save(root / "masks/val/00.png")
    assert main(["vit_jax", "check-data", f"masks:{root}"]) == 65
    assert "  with a mask of another size: images/val/00.jpg" in capsys.readouterr().out
