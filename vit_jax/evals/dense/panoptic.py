# SPDX-License-Identifier: Apache-2.0
"""Panoptic quality (arXiv:1801.00868, section 4.2), with void pixels and crowds as COCO has them.

A found and a true segment of the same class match where their intersection over union is above 1/2;
at most one can. Crowds match nothing and are not missed.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int

from vit_jax.data.targets import PixelTarget


class SegmentMap(NamedTuple):
    """An image divided into segments.

    Attributes:
        ids: the segment of each pixel, from 1; 0 is none (void).
        classes: of each segment, by id - 1.
        crowd: whether a segment stands for many of its class.
    """

    ids: Int[np.ndarray, "H W"]
    classes: Int[np.ndarray, " n"]
    crowd: Bool[np.ndarray, " n"]


class SegmentCounts(NamedTuple):
    """For each class: sums of IoU of matches, matches, found without match, missed; [K] each."""

    iou: Float64[np.ndarray, " K"]
    matched: Float64[np.ndarray, " K"]
    false: Float64[np.ndarray, " K"]
    missed: Float64[np.ndarray, " K"]


def of_target(target: PixelTarget) -> SegmentMap:
    """Return a target's segments as a division of its image; of two that overlap the later one's.

    Raises ValueError: it has boxes alone.
    """
    if target.masks is None or target.classes is None:
        raise ValueError("the target has no masks")
    ids = np.zeros(target.size, np.int32)
    for number, mask in enumerate(target.masks, 1):
        ids[mask] = number
    crowd = np.zeros(len(target.classes), bool) if target.crowd is None else target.crowd
    return SegmentMap(ids, target.classes, crowd)


def count(truth: SegmentMap, found: SegmentMap, num_classes: int) -> SegmentCounts:
    """Match the segments of one image; found ones are no crowds."""
    n, m = len(truth.classes) + 1, len(found.classes) + 1
    cells = truth.ids.astype(np.int64).ravel() * m + found.ids.ravel()
    both = np.bincount(cells, minlength=n * m).reshape(n, m)
    areas, sizes = both.sum(axis=1), both.sum(axis=0)
    void = both[0]
    union = areas[1:, None] + (sizes - void)[None, 1:] - both[1:, 1:]
    ratio = both[1:, 1:] / np.maximum(union, 1)
    same = truth.classes[:, None] == found.classes[None]
    pairs = same & ~truth.crowd[:, None] & (ratio > 0.5)
    true, guess = np.nonzero(pairs)
    # What lies mostly on void pixels, or on a crowd of its class, is neither right nor wrong.
    in_crowd = (both[1:, 1:] * (same & truth.crowd[:, None])).sum(axis=0)
    excused = void[1:] + in_crowd > 0.5 * sizes[1:]
    false = ~pairs.any(axis=0) & ~excused & (sizes[1:] > 0)
    missed = ~pairs.any(axis=1) & ~truth.crowd & (areas[1:] > 0)

    def total(classes: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(classes, weights, minlength=num_classes).astype(np.float64)

    of_pairs = truth.classes[true]
    return SegmentCounts(
        total(of_pairs, ratio[true, guess]),
        total(of_pairs),
        total(found.classes[false]),
        total(truth.classes[missed]),
    )


class Quality(NamedTuple):
    """Panoptic, segmentation and recognition quality of each class, [K]; NaN where none occurs."""

    pq: Float64[np.ndarray, " K"]
    sq: Float64[np.ndarray, " K"]
    rq: Float64[np.ndarray, " K"]

    def mean(self, classes: Bool[np.ndarray, " K"] | None = None) -> tuple[float, float, float]:
        """Return the means over the classes that occur, or over some; NaN where none does."""
        chosen = ~np.isnan(self.pq) & (True if classes is None else classes)
        if not chosen.any():
            nothing = float("nan")
            return nothing, nothing, nothing
        pq, sq, rq = (float(values[chosen].mean()) for values in self)
        return pq, sq, rq


def quality(counts: SegmentCounts) -> Quality:
    """Return the qualities of the classes from the sums over a split; PQ = SQ * RQ."""
    total = counts.matched + 0.5 * counts.false + 0.5 * counts.missed
    with np.errstate(divide="ignore", invalid="ignore"):
        pq, rq = counts.iou / total, counts.matched / total
    # As COCO's code has it: a class without a match has an SQ of 0.
    sq = np.where(np.isnan(pq), np.nan, counts.iou / np.maximum(counts.matched, 1))
    return Quality(pq, sq, rq)
