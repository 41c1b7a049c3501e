# SPDX-License-Identifier: Apache-2.0
"""Targets move as their images do; torchvision's own results are in tests/golden/targets.npz."""

import numpy as np
import pytest

from tests.moves import CASES, GOLDEN, ours
from vit_jax.data.images import ops, target_ops
from vit_jax.data.images.ops import Box, Geometry
from vit_jax.data.targets import IGNORED, PixelTarget

WHOLE = Geometry((8, 12), 0, Box(0, 0, 8, 12), (8, 12))


def segments(**changes) -> PixelTarget:
    """Three masks: the left half, one pixel at the right, and the row at the bottom."""
    masks = np.zeros((3, 8, 12), bool)
    masks[0, :, :6] = masks[1, 3, 10] = masks[2, 7] = True
    given = {"size": (8, 12), "masks": masks, "classes": np.array([4, 5, 6], np.int32)}
    return PixelTarget(**given | changes)


def classes_of(target: PixelTarget) -> list[int]:
    assert target.classes is not None
    return target.classes.tolist()


def test_masks_and_boxes_equal_torchvisions() -> None:
    with np.load(GOLDEN) as golden:
        for number, case in enumerate(CASES):
            found = ours(case)
            bits = np.packbits(found["masks"], axis=-1)
            np.testing.assert_array_equal(bits, golden[f"masks{number}"], err_msg=f"{number}")
            np.testing.assert_allclose(found["boxes"], golden[f"boxes{number}"], atol=2e-3)


def test_what_lies_outside_is_unknown() -> None:
    move = WHOLE._replace(box=Box(4, 6, 8, 12))
    label_map = target_ops.moved(
        PixelTarget(size=(8, 12), label_map=np.ones((8, 12), np.int16)), move
    )
    depth = target_ops.moved(PixelTarget(size=(8, 12), depth=np.ones((8, 12), np.float32)), move)
    inside = np.zeros((8, 12), bool)
    inside[:4, :6] = True
    assert label_map.label_map is not None
    assert depth.depth is not None
    np.testing.assert_array_equal(label_map.label_map, np.where(inside, 1, IGNORED))
    np.testing.assert_array_equal(depth.depth, inside)


def test_depth_is_never_averaged() -> None:
    depth = np.where(np.arange(12) < 6, 1.0, 9.0)[None].repeat(8, 0).astype(np.float32)
    move = WHOLE._replace(scaled=(5, 7), box=Box(0, 0, 5, 7), size=(5, 7))
    found = target_ops.moved(PixelTarget(size=(8, 12), depth=depth), move)
    assert found.depth is not None
    assert set(np.unique(found.depth)) == {1, 9}


@pytest.mark.parametrize(
    ("least", "classes"), [(0.0, [4, 6]), (0.4, [4, 6]), (0.45, [4]), (0.8, [4]), (0.9, [])]
)
def test_a_segment_of_which_too_little_is_left_is_dropped(least: float, classes: list) -> None:
    # The crop leaves 5 of the left half's 6 columns and 5 of the row's 12 pixels; it cuts off the
    # single pixel at the right.
    move = WHOLE._replace(box=Box(0, 1, 8, 5), size=(16, 10))
    assert classes_of(target_ops.moved(segments(), move, least)) == classes


def test_boxes_are_dropped_by_what_is_left_of_their_area() -> None:
    boxes = np.array([[0, 0, 4, 4], [6, 2, 10, 6], [0, 0, 0.3, 8]], np.float32)
    target = segments(masks=None, boxes=boxes)
    move = WHOLE._replace(box=Box(0, 0, 8, 8), size=(8, 8))
    found = target_ops.moved(target, move)
    assert found.boxes is not None
    np.testing.assert_array_equal(found.boxes, [[0, 0, 4, 4], [6, 2, 8, 6]])
    assert classes_of(found) == [4, 5], "the third holds no pixel's centre"
    assert classes_of(target_ops.moved(target, move, 0.6)) == [4]
    masks, _ = target_ops.masks_of(found)
    assert masks.sum((1, 2)).tolist() == [16, 8]
    assert masks[1, 2:6, 6:8].all()


def test_a_matrix_moves_masks_and_boxes_alike() -> None:
    drawn = np.array([[0.9, 0.7, 0.2, 0.5, 0.8]])
    (matrix,) = ops.affine_matrices(
        drawn, 40, 60, degrees=40.0, translate=(0.2, 0.2), scale=(0.7, 1.3), shear=10.0
    )
    boxes = np.array([[20, 12, 34, 25]], np.float32)
    masks = target_ops.rectangles(boxes, (40, 60))
    move = Geometry((40, 60), 0, Box(0, 0, 40, 60), (40, 60), False, matrix)
    moved = target_ops.moved_pixels(masks, move, 0)[0]
    rows, columns = np.flatnonzero(moved.any(1)), np.flatnonzero(moved.any(0))
    edges = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    np.testing.assert_allclose(target_ops.moved_boxes(boxes, (40, 60), move)[0], edges, atol=1)
    image = ops.warp(255 * masks[0, ..., None].astype(np.uint8), matrix)[..., 0] > 127
    assert (image != moved).sum() <= 10, "the mask is not where its image is"


def test_the_smallest_segments_are_left_out_and_counted() -> None:
    bits, classes, left_out = target_ops.packed(segments(), 2)
    assert (classes.tolist(), left_out) == ([4, 6], 1)
    masks = np.unpackbits(bits, axis=-1, count=12).astype(bool)
    np.testing.assert_array_equal(masks, target_ops.masks_of(segments())[0][[0, 2]])
    bits, classes, left_out = target_ops.packed(segments(), 5)
    assert (classes.tolist(), left_out, bits.shape) == ([4, 5, 6, -1, -1], 0, (5, 8, 2))
    assert not bits[3:].any()


def test_classes_of_pixels_are_segments_and_back() -> None:
    painted = target_ops.painted(segments())
    expected = np.full((8, 12), IGNORED)
    expected[:, :6], expected[3, 10], expected[7] = 4, 5, 6
    np.testing.assert_array_equal(painted, expected)
    masks, classes = target_ops.masks_of(PixelTarget(size=(8, 12), label_map=painted))
    assert classes.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(masks, expected == classes[:, None, None])
    with pytest.raises(ValueError, match="boxes and no masks"):
        target_ops.painted(segments(masks=None, boxes=np.zeros((3, 4), np.float32)))


def test_crowds_are_no_segments() -> None:
    target = target_ops.uncrowded(segments(crowd=np.array([False, True, False])))
    assert classes_of(target) == [4, 6]
    assert target.masks is not None
    assert len(target.masks) == 2
    assert not target_ops.is_blank(target)
    assert target_ops.is_blank(target_ops.uncrowded(segments(crowd=np.ones(3, bool))))
