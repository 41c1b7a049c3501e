# SPDX-License-Identifier: Apache-2.0
"""Metrics of several labels an image, in numpy: average precision, F1 at thresholds, CP to OF1.

Labels are [M, K]: 1 and 0, and -1 where nobody knows, which is left out of every number, as COCO's
ignored labels are. Scores are any numbers that grow with how likely a class is.
"""

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped

from vit_jax.evals.config import ThresholdRule

Labels = Int[np.ndarray, "M K"]
Scores2D = Float[np.ndarray, "M K"]


def average_precision(scores: Float[np.ndarray, " M"], truth: Bool[np.ndarray, " M"]) -> float:
    """Return sum_n (R_n - R_{n-1}) P_n over the distinct scores, ties together; NaN of no positive.

    It is scikit-learn's `average_precision_score`, and not VOC07's 11 points.
    """
    if not truth.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(truth[order])
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of each tie
    precision, recall = hits[last] / (last + 1), hits[last] / hits[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def average_precisions(scores: Scores2D, labels: Labels) -> Float64[np.ndarray, " K"]:
    """Return the average precision of each class, NaN of one without a positive."""
    columns = zip(scores.T, labels.T, strict=True)
    return np.array([average_precision(s[y >= 0], y[y >= 0] > 0) for s, y in columns])


def auroc(scores: Float[np.ndarray, " M"], truth: Bool[np.ndarray, " M"]) -> float:
    """Return the area under the ROC curve, ties counted half; NaN where all are of one kind."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]  # the mean one of a tie
    return float((rank[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def ranking(scores: Scores2D, labels: Labels) -> dict[str, float]:
    """Return map and auroc, means over the classes that have both kinds, and micro_map.

    Raises ValueError: no class has a positive.
    """
    known = labels >= 0
    each = average_precisions(scores, labels)
    if np.isnan(each).all():
        raise ValueError("no image has a label")
    columns = zip(scores.T, labels.T, strict=True)
    areas = np.array([auroc(s[y >= 0], y[y >= 0] > 0) for s, y in columns])
    area = {} if np.isnan(areas).all() else {"auroc": float(np.nanmean(areas))}
    micro = average_precision(scores[known], labels[known] > 0)
    return {"map": float(np.nanmean(each)), "micro_map": micro, **area}


def counts(
    seen: Bool[np.ndarray, "M K"], labels: Labels
) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " K"], Int[np.ndarray, " K"]]:
    """Return of each class how many were seen and there, how many seen, and how many there."""
    known, there = labels >= 0, labels > 0
    hits = (seen & there).sum(axis=0)
    return hits, (seen & known).sum(axis=0), there.sum(axis=0)


def _ratio(part: Shaped[np.ndarray, " n"], whole: Shaped[np.ndarray, " n"]) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def at_threshold(seen: Bool[np.ndarray, "M K"], labels: Labels) -> dict[str, float]:
    """Return cp, cr, cf1, over classes, and op, or, of1, over all labels, in [0, 1].

    CP and CR are means over the classes that have a positive, and CF1 is the harmonic mean of the
    two, as in multi-label papers since arXiv:1604.04573; a class that is never seen has CP 0.
    """
    hits, found, there = counts(seen, labels)
    some = there > 0
    cp, cr = (float(_ratio(hits, of)[some].mean()) for of in (found, there))
    op, recall = (float(_ratio(hits.sum()[None], of.sum()[None])[0]) for of in (found, there))
    return {
        "cp": cp,
        "cr": cr,
        "cf1": _harmonic(cp, cr),
        "op": op,
        "or": recall,
        "of1": _harmonic(op, recall),
    }


def _harmonic(one: float, two: float) -> float:
    return 2 * one * two / (one + two) if one + two else 0.0


def f1(seen: Bool[np.ndarray, "M K"], labels: Labels) -> dict[str, float]:
    """Return f1 over all labels, and macro_f1, the mean over the classes that have a positive."""
    hits, found, there = counts(seen, labels)
    each = _ratio(2 * hits, found + there)[there > 0]
    overall = 2 * int(hits.sum()) / max(int((found + there).sum()), 1)
    return {"f1": overall, "macro_f1": float(each.mean())}


def best_threshold(scores: Float[np.ndarray, " M"], truth: Bool[np.ndarray, " M"]) -> float:
    """Return the threshold in (0, 1) of the best F1 of some probabilities.

    It lies half way between two of them; of equally good ones, the one nearest to 0.5 is taken. 0.5
    where there is no positive.
    """
    if not truth.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order].astype(np.float64)
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    hits = np.cumsum(truth[order])[last]
    value = 2 * hits / (last + 1 + truth.sum())
    below = np.append(ranked[last[:-1] + 1], 0.0)
    between = (ranked[last] + below) / 2
    best = np.flatnonzero(value >= value.max() - 1e-12)
    return float(between[best][np.argmin(np.abs(between[best] - 0.5))])


def choose(
    scores: Scores2D, labels: Labels, rule: ThresholdRule = ThresholdRule.GLOBAL
) -> Float64[np.ndarray, " K"]:
    """Return the threshold of each class by a rule; `scores` are probabilities."""
    if rule is ThresholdRule.PER_CLASS:
        columns = zip(scores.T, labels.T, strict=True)
        return np.array([best_threshold(s[y >= 0], y[y >= 0] > 0) for s, y in columns])
    known = labels >= 0
    return np.full(scores.shape[1], best_threshold(scores[known], labels[known] > 0))
