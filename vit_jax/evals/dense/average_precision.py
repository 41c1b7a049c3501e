# SPDX-License-Identifier: Apache-2.0
"""COCO's average precision and recall of boxes and of masks (cocodataset/cocoapi, cocoeval).

In each image, those found of a class are matched, best first, with the true ones that they overlap
most. The precision is then read from all images together, at 101 recalls, for ten
thresholds of the overlap and four ranges of area. An image's part is a few numbers (`Matches`), so
that a split of any size is summed in any number of processes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Num

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MOST = (1, 10, 100)  # found ones of an image and class that count
AREAS = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


class Matches(NamedTuple):
    """What one image says of one class; a areas, t thresholds, d found, best first.

    Attributes:
        scores: of the found.
        hit: whether each is given to a true one.
        ignored: whether each counts neither as right nor as wrong.
        positives: how many true ones there are to find.
    """

    scores: Float64[np.ndarray, " d"]
    hit: Bool[np.ndarray, "a t d"]
    ignored: Bool[np.ndarray, "a t d"]
    positives: Int[np.ndarray, " a"]


def box_overlaps(
    found: Float[np.ndarray, "d 4"], true: Float[np.ndarray, "g 4"], crowd: Bool[np.ndarray, " g"]
) -> Float64[np.ndarray, "d g"]:
    """Return the intersections over unions of boxes (left, top, right, bottom).

    Beside a crowd the union is the found one's own area.
    """
    found, true = found.astype(np.float64), true.astype(np.float64)
    low = np.maximum(found[:, None, :2], true[None, :, :2])
    high = np.minimum(found[:, None, 2:], true[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=-1)
    return _ratio(both, box_areas(found), box_areas(true), crowd)


def box_areas(boxes: Float[np.ndarray, "n 4"]) -> Float64[np.ndarray, " n"]:
    """Return the areas of boxes (left, top, right, bottom)."""
    return np.prod((boxes[:, 2:] - boxes[:, :2]).astype(np.float64), axis=1)


def mask_overlaps(
    found: Bool[np.ndarray, "d H W"],
    true: Bool[np.ndarray, "g H W"],
    crowd: Bool[np.ndarray, " g"],
) -> Float64[np.ndarray, "d g"]:
    """Return the intersections over unions of masks, as `box_overlaps` does."""
    # Products of float32 count exactly below 2 ** 24 pixels; larger masks go in parts.
    pixels = found.shape[1] * found.shape[2]
    rows, columns = (masks.reshape(len(masks), pixels) for masks in (found, true))
    both = np.zeros((len(found), len(true)))
    for at in range(0, pixels, 1 << 22):
        part = slice(at, at + (1 << 22))
        both += rows[:, part].astype(np.float32) @ columns[:, part].astype(np.float32).T
    return _ratio(both, rows.sum(axis=1), columns.sum(axis=1), crowd)


def _ratio(
    both: np.ndarray, found: np.ndarray, true: np.ndarray, crowd: np.ndarray
) -> Float64[np.ndarray, "d g"]:
    union = np.where(crowd[None], found[:, None], found[:, None] + true[None] - both)
    return np.divide(both, union, out=np.zeros(both.shape), where=union > 0)


def matches(
    overlaps: Float64[np.ndarray, "d g"],
    scores: Float[np.ndarray, " d"],
    areas: Num[np.ndarray, " d"],
    true_areas: Num[np.ndarray, " g"],
    crowd: Bool[np.ndarray, " g"],
) -> Matches:
    """Give the found ones of one image and class to the true ones.

    Args:
        overlaps: of each found with each true one.
        scores: of the found; the best hundred count.
        areas, true_areas: in pixels.
        crowd: true ones that stand for many: any number of found ones may be given to them, and
            none of these counts.
    """
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")[: MOST[-1]]
    overlaps, areas = overlaps[order], areas[order]
    shape = (len(AREAS), len(THRESHOLDS), len(order))
    hit, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    positives = np.zeros(len(AREAS), np.int64)
    for a, (low, high) in enumerate(AREAS.values()):
        aside = crowd | (true_areas < low) | (true_areas > high)
        positives[a] = (~aside).sum()
        outside = (areas < low) | (areas > high)
        for t, threshold in enumerate(THRESHOLDS):
            hit[a, t], ignored[a, t] = _given(overlaps, threshold, aside, crowd)
            ignored[a, t] |= ~hit[a, t] & outside
    return Matches(np.asarray(scores, np.float64)[order], hit, ignored, positives)


def _given(
    overlaps: np.ndarray, threshold: float, aside: np.ndarray, crowd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each found one whether it is given to a true one, and whether to one aside."""
    hit, ignored = np.zeros(len(overlaps), bool), np.zeros(len(overlaps), bool)
    free = np.ones(len(aside), bool)
    least = min(threshold, 1 - 1e-10)
    for d, row in enumerate(overlaps):
        # Those that count come first; one aside is taken only where none of them fits, and the
        # last where overlaps are equal.
        for group in (~aside, aside):
            fit = group & (free | crowd) & (row >= least)
            if fit.any():
                places = np.flatnonzero(fit)
                best = places[::-1][row[places][::-1].argmax()]
                hit[d], ignored[d], free[best] = True, aside[best], False
                break
    return hit, ignored


class Precision(NamedTuple):
    """Precision at each recall, and the highest recall; -1 where there is nothing to find.

    Attributes:
        precision: [t, 101, K, a, m] by threshold, recall, class, area and number of found.
        recall: [t, K, a, m].
    """

    precision: Float64[np.ndarray, "t r K a m"]
    recall: Float64[np.ndarray, "t K a m"]

    def summary(self, name: str = "") -> dict[str, float]:
        """Return COCO's twelve numbers as `name` and ap, ap50, ...; NaN where there is nothing."""
        areas = list(AREAS)
        found = {"ap": _mean(self.precision[:, :, :, 0, -1])}
        for percent, t in ((50, 0), (75, 5)):
            found[f"ap{percent}"] = _mean(self.precision[t, :, :, 0, -1])
        found |= {f"ap_{x}": _mean(self.precision[..., areas.index(x), -1]) for x in areas[1:]}
        found |= {f"ar{most}": _mean(self.recall[..., 0, i]) for i, most in enumerate(MOST)}
        found |= {f"ar_{x}": _mean(self.recall[..., areas.index(x), -1]) for x in areas[1:]}
        return {f"{name}{key}": value for key, value in found.items()}

    def of_classes(self) -> Float64[np.ndarray, " K"]:
        """Return each class's AP; NaN of a class that is not there."""
        each = self.precision[:, :, :, 0, -1]
        return np.array([_mean(each[:, :, k]) for k in range(each.shape[2])])


def _mean(values: np.ndarray) -> float:
    known = values[values > -1]
    return float(known.mean()) if known.size else float("nan")


def precision(of_class: Sequence[Sequence[Matches]]) -> Precision:
    """Return the precision of each class from its images' matches, which come in a fixed order."""
    shape = (len(THRESHOLDS), len(of_class), len(AREAS), len(MOST))
    recall = np.full(shape, -1.0)
    curve = np.full((shape[0], len(RECALLS), *shape[1:]), -1.0)
    for k, images in enumerate(of_class):
        for a in range(len(AREAS)):
            positives = sum(int(image.positives[a]) for image in images)
            for m, most in enumerate(MOST if positives else ()):
                scores = np.concatenate([image.scores[:most] for image in images])
                order = np.argsort(-scores, kind="stable")
                hit, aside = (
                    np.concatenate([each[a][:, :most] for each in arrays], axis=1)[:, order]
                    for arrays in ([i.hit for i in images], [i.ignored for i in images])
                )
                right = np.cumsum(hit & ~aside, axis=1, dtype=np.float64)
                wrong = np.cumsum(~hit & ~aside, axis=1, dtype=np.float64)
                for t in range(len(THRESHOLDS)):
                    recall[t, k, a, m] = right[t, -1] / positives if len(order) else 0
                    curve[t, :, k, a, m] = _at_recalls(right[t], wrong[t], positives)
    return Precision(curve, recall)


def _at_recalls(
    right: Float64[np.ndarray, " d"], wrong: Float64[np.ndarray, " d"], positives: int
) -> Float64[np.ndarray, " r"]:
    """Return the best precision at each recall or any higher one; 0 where no such recall is."""
    value = right / (right + wrong + np.spacing(1))
    best = np.maximum.accumulate(value[::-1])[::-1]
    places = np.searchsorted(right / positives, RECALLS, side="left")
    return np.append(best, 0.0)[places]
