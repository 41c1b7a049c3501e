# SPDX-License-Identifier: Apache-2.0
"""Metrics of pixels, segments and boxes against numbers of others' code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit_jax.data.targets import Target
from vit_jax.evals.dense import average_precision, miou, panoptic
from vit_jax.evals.dense.panoptic import SegmentMap

GOLDEN = Path(__file__).parents[3] / "golden" / "next3"


def _golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def test_miou_counts_all_pixels_together() -> None:
    golden = _golden("segmentation_metrics")
    truth = np.where(golden["in_truth"] == 255, -1, golden["in_truth"]).astype(np.int16)
    pairs = zip(truth, golden["in_guess"], strict=True)
    counts = np.sum([miou.confusion(*pair, 4) for pair in pairs], axis=0)
    np.testing.assert_array_equal(counts, golden["out_confusion"])
    found = miou.overlap(counts)
    np.testing.assert_allclose(found.iou, golden["out_iou"], rtol=1e-9)
    assert found.miou == pytest.approx(float(golden["out_miou"]), rel=1e-9)
    assert found.accuracy == pytest.approx(counts.trace() / counts.sum())
    # A class that is neither there nor found is left out; one that is found counts.
    bigger = np.zeros((6, 6), np.int64)
    bigger[:4, :4] = counts
    assert miou.overlap(bigger).miou == found.miou
    bigger[0, 5] = 1
    assert miou.overlap(bigger).miou == pytest.approx(float(golden["out_iou"].sum()) / 5, rel=1e-2)
    assert np.isnan(miou.overlap(np.zeros((2, 2), np.int64)).miou)


def _segmentation(ids: Any, classes: Any, crowd: Any = ()) -> SegmentMap:
    flags = np.zeros(len(classes), bool)
    flags[list(crowd)] = True
    return SegmentMap(np.asarray(ids), np.asarray(classes), flags)


def test_panoptic_quality() -> None:
    golden = _golden("segmentation_metrics")
    truth, found = (
        _segmentation(golden[f"in_{name}_segments"], golden[f"in_{name}_class"][1:])
        for name in ("truth", "found")
    )
    counts = panoptic.count(truth, found, 2)
    matched = np.stack([counts.matched, counts.false, counts.missed])
    np.testing.assert_array_equal(matched, golden["out_tp_fp_fn"])
    quality = panoptic.quality(counts)
    np.testing.assert_allclose(quality.pq, golden["out_pq"], rtol=1e-9)
    np.testing.assert_allclose(quality.pq, quality.sq * quality.rq)
    assert quality.mean()[0] == pytest.approx(float(golden["out_pq_mean"]), rel=1e-9)
    assert quality.mean(np.array([True, False]))[0] == pytest.approx(golden["out_pq"][0])


def test_void_and_crowds_of_panoptic_segments() -> None:
    # Eight pixels of void, eight of a crowd of class 1, eight of a segment of class 0.
    truth = _segmentation(np.repeat([0, 1, 2], 8)[None], [1, 0], crowd=[0])

    def counted(ids: Any, classes: Any) -> tuple[list[float], list[float], list[float]]:
        found = panoptic.count(truth, _segmentation(np.asarray(ids)[None], classes), 2)
        return found.matched.tolist(), found.false.tolist(), found.missed.tolist()

    nothing = [0, 0]
    # Found in the crowd, of its class: neither right nor wrong; of another class: wrong.
    assert counted(np.repeat([0, 1, 0], 8), [1]) == (nothing, nothing, [1, 0])
    assert counted(np.repeat([0, 1, 0], 8), [0]) == (nothing, [1, 0], [1, 0])
    # Mostly on void; half of it there and half in the crowd.
    assert counted(np.repeat([1, 1, 0], (8, 2, 14)), [0]) == (nothing, nothing, [1, 0])
    assert counted(np.repeat([1, 1, 0], 8), [1]) == (nothing, nothing, [1, 0])
    # Void pixels are left out of the union: five of eight, with ten on void, are a match.
    ids = np.concatenate([np.full(8, 1), np.zeros(8), np.full(5, 1), np.zeros(3)]).astype(int)
    assert counted(ids, [0])[0] == [1, 0]
    masks = np.zeros((2, 1, 24), bool)
    masks[0, 0, 8:16], masks[1, 0, 16:] = True, True
    target = Target(size=(1, 24), masks=masks, classes=np.array([1, 0], np.int32))
    np.testing.assert_array_equal(panoptic.of_target(target).ids, truth.ids)


def _corners(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows[:, 2:4], rows[:, 2:4] + rows[:, 4:6]], axis=1)


def test_average_precision_is_cocos() -> None:
    golden = _golden("coco_boxes")
    truth, found = golden["in_truth"], golden["in_found"]
    of_class = []
    for k in (1, 2, 3):
        images = []
        for image in range(1, 7):
            true = truth[(truth[:, 0] == image) & (truth[:, 1] == k)]
            guess = found[(found[:, 0] == image) & (found[:, 1] == k)]
            crowd, boxes, own = true[:, 6] > 0, _corners(true), _corners(guess)
            overlaps = average_precision.box_overlaps(own, boxes, crowd)
            areas, true_areas = map(average_precision.box_areas, (own, boxes))
            scores = guess[:, 6]
            images.append(average_precision.matches(overlaps, scores, areas, true_areas, crowd))
        of_class.append(images)
    result = average_precision.precision(of_class)
    stats = np.nan_to_num(list(result.summary().values()), nan=-1)
    np.testing.assert_allclose(stats, golden["out_stats"], rtol=1e-9)
    np.testing.assert_allclose(
        result.precision[:, ::10, :, 0, -1], golden["out_precision"], rtol=1e-9
    )


def test_masks_overlap_as_their_boxes_where_they_fill_them() -> None:
    rng = np.random.default_rng(0)
    low = rng.integers(0, 10, (7, 2))
    boxes = np.concatenate([low, low + rng.integers(1, 10, (7, 2))], axis=1).astype(np.float32)
    masks = np.zeros((7, 20, 20), bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
        mask[top:bottom, left:right] = True
    crowd = np.array([True, False, False])
    by_masks = average_precision.mask_overlaps(masks[:4], masks[4:], crowd)
    by_boxes = average_precision.box_overlaps(boxes[:4], boxes[4:], crowd)
    np.testing.assert_allclose(by_masks, by_boxes)
    empty = average_precision.mask_overlaps(masks[:0], masks[4:], crowd)
    assert empty.shape == (0, 3)
