# SPDX-License-Identifier: Apache-2.0
"""Intersection over union of classes and accuracy of pixels, over all pixels of a split.

As mmsegmentation counts them (its IoUMetric): pixels of all images together, then a ratio for each
class, then their mean.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int, Int64


def confusion(
    truth: Int[np.ndarray, "H W"], found: Int[np.ndarray, "H W"], num_classes: int
) -> Int64[np.ndarray, "K K"]:
    """Count the pixels of true class i (row) that were found to be j (column).

    Pixels whose true class is negative do not count. Found classes are in [0, K).
    """
    known = truth >= 0
    cells = truth[known].astype(np.int64) * num_classes + found[known]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


class Overlap(NamedTuple):
    """What a confusion of pixels amounts to.

    Attributes:
        iou: of each class; NaN of one that is neither there nor found.
        recall: the share of each class's pixels that was found; NaN of one that is not there.
        miou: the mean of `iou` without NaN.
        accuracy: the share of all pixels that was found right.
    """

    iou: Float64[np.ndarray, " K"]
    recall: Float64[np.ndarray, " K"]
    miou: float
    accuracy: float


def overlap(counts: Int64[np.ndarray, "K K"]) -> Overlap:
    """Return the metrics of a split's confusion; all are NaN where it counts no pixel."""
    both = counts.diagonal().astype(np.float64)
    true, found = counts.sum(axis=1), counts.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        iou, recall = both / (true + found - both), both / true
    there = ~np.isnan(iou)
    miou = float(iou[there].mean()) if there.any() else float("nan")
    total = int(counts.sum())
    return Overlap(iou, recall, miou, float(both.sum() / total) if total else float("nan"))
