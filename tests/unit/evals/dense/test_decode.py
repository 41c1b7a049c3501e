# SPDX-License-Identifier: Apache-2.0
"""Windows, and what scores and masks of queries say of an image at its own size."""

import numpy as np
import pytest

from vit_jax.data.config import Resize
from vit_jax.evals.dense import decode
from vit_jax.models.resample import bilinear

METHOD = Resize.BILINEAR


def test_windows_cover_the_image() -> None:
    # The authors' place of window i: int(i * (size - overlap of each)).
    assert decode.places(683, 512) == [0, 171]
    assert decode.places(1100, 512) == [0, 294, 588]
    assert decode.places(512, 512) == [0]
    # mmsegmentation's slides: the last one at the edge.
    assert decode.places(683, 512, 341) == [0, 171]
    assert decode.places(1100, 512, 341) == [0, 341, 588]
    assert decode.places(300, 512, 341) == [0]
    image = np.random.default_rng(0).integers(0, 255, (20, 31, 3), np.uint8)
    found = decode.covering(image, (8, 8), METHOD)
    assert found.size == (8, 12)
    assert found.corners == [(0, 0), (0, 4)]
    np.testing.assert_array_equal(found.pixels[0, :, 4:], found.pixels[1, :, :4])
    whole = decode.padded(image, (8, 8), METHOD)
    assert whole.size == (5, 8)
    assert whole.pixels.shape == (1, 8, 8, 3)
    assert not whole.pixels[0, 5:].any()
    assert decode.padded(image[:1], (8, 8), METHOD).size == (1, 8)


def test_maps_are_enlarged_as_pytorch_does() -> None:
    maps = np.random.default_rng(1).normal(size=(70, 5, 4)).astype(np.float32)
    rows, columns = bilinear(5, 12), bilinear(4, 3)
    found = decode.enlarged(maps, (12, 3))
    np.testing.assert_allclose(found, rows @ maps @ columns.T, atol=1e-5)


def test_classes_of_windows_are_averaged() -> None:
    image = np.zeros((8, 12, 3), np.uint8)
    windows = decode.covering(image, (8, 8), METHOD)
    scores = np.zeros((2, 3, 8, 8), np.float32)
    scores[0, 0], scores[1, 1] = 1.0, 3.0
    scores[0, 2, :, :2] = 1.5
    found = decode.class_map(list(scores), windows, (8, 12))
    # One window alone on the left, both in the middle, where the second's 3 / 2 is above 1 / 2.
    assert found[0].tolist() == [2, 2, 0, 0, *[1] * 8]
    # Where the first window ends is nearer to the class of 1 than to the one of 2; their
    # sums, of one window and of two, would say otherwise.
    scores = np.zeros((2, 2, 8, 8), np.float32)
    scores[0, 0, :, :4], scores[0, 1, :, 4:], scores[1, 1] = 1.0, 2.0, 2.0
    found = decode.class_map(list(scores), windows, (16, 24))
    assert found[0].tolist() == [*[0] * 8, *[1] * 16]


def _logits(masks: np.ndarray, scale: float = 8.0) -> np.ndarray:
    return np.where(masks, scale, -scale).astype(np.float32)


def _whole(size: tuple[int, int]) -> decode.Windows:
    return decode.padded(np.zeros((*size, 3), np.uint8), (8, 8), METHOD)


def test_instances_are_the_likeliest_pairs_of_query_and_class() -> None:
    masks = np.zeros((3, 8, 8), bool)
    masks[0, :4, :4], masks[1, 2:6, 1:7] = True, True
    classes = np.log(np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4]], np.float32))
    found = decode.instances(classes, _logits(masks), _whole((8, 8)), (8, 8), top=4)
    sure = 1 / (1 + np.exp(-8.0))
    # The third query has no pixel: it is among the four pairs, and then left out.
    assert found.classes.tolist() == [1, 0, 1]
    np.testing.assert_allclose(found.scores, np.array([0.7, 0.6, 0.3]) * sure, rtol=1e-5)
    np.testing.assert_array_equal(found.masks, masks[[1, 0, 0]])
    assert found.boxes.tolist() == [[1, 2, 7, 6], [0, 0, 4, 4], [0, 0, 4, 4]]
    # The padding is cut off: 8 x 4 pixels of the window are the whole of a wide image.
    half = decode.instances(classes, _logits(masks), _whole((8, 16)), (8, 16), top=1)
    assert half.boxes.tolist() == [[2, 4, 14, 8]]


def test_panoptic_segments() -> None:
    masks = np.zeros((5, 8, 8), bool)
    masks[0, :4], masks[1, 4:, :4], masks[2, 4:, 4:], masks[3, :3, :3] = True, True, True, True
    masks[4, :, :] = True
    probability = np.array(
        [
            [0.9, 0.05, 0.05],  # stuff above
            [0.9, 0.05, 0.05],  # the same stuff below
            [0.05, 0.95, 0.0],  # a thing
            [0.05, 0.85, 0.1],  # a thing behind the first: it gets no pixel
            [0.1, 0.1, 0.8],  # nothing
        ]
    )
    classes = np.log(np.maximum(probability, 1e-9)).astype(np.float32)
    found = decode.panoptic(classes, _logits(masks), _whole((8, 8)), (8, 8), (False, True))
    assert found.found.classes.tolist() == [0, 1]
    assert np.unique(found.found.ids[:4]).tolist() == [1]
    assert np.unique(found.found.ids[4:, :4]).tolist() == [1]
    assert np.unique(found.found.ids[4:, 4:]).tolist() == [2]
    assert found.scores.tolist() == pytest.approx([0.9, 0.95], rel=1e-5)
    # Without stuff each query's part is a segment.
    every = decode.panoptic(classes, _logits(masks), _whole((8, 8)), (8, 8))
    assert every.found.classes.tolist() == [0, 0, 1]
    # A query that wins no more than the share `overlap` of its mask is dropped.
    masks[2, :] = True
    masks[2, 7, 7] = False
    lost = decode.panoptic(classes, _logits(masks), _whole((8, 8)), (8, 8), overlap=0.9)
    assert 0 not in [k for k in lost.found.classes.tolist() if k != 1]
    none = decode.panoptic(classes[4:], _logits(masks[4:]), _whole((8, 8)), (8, 8))
    assert not none.found.ids.any()
