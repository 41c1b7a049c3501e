# SPDX-License-Identifier: Apache-2.0
"""How sure a measured accuracy is, and how far confidence is from it: calibration error (ECE).

Guo et al. (arXiv:1706.04599): the confidence of the first guess is its softmax probability. For a
model trained by sigmoid or bce it is the sigmoid, the probability that the image has that label.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

NUM_BINS = 15  # as in the paper
_Z95 = 1.959963984540054  # standard deviations either side that hold 95 % of a normal distribution


class Bin(NamedTuple):
    """The guesses with a confidence in (low, high]: count, mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def reliability(
    confidence: Float[np.ndarray, " M"], correct: Bool[np.ndarray, " M"], num_bins: int = NUM_BINS
) -> list[Bin]:
    """Sort M guesses into bins of equal width; an empty one has confidence and accuracy 0.

    A confidence of 0, which the first bin's (0, high] leaves out, counts there.
    """
    edges = np.linspace(0, 1, num_bins + 1)
    bin_of = np.digitize(confidence, edges[1:-1], right=True)
    bins = []
    for k, (low, high) in enumerate(itertools.pairwise(edges)):
        chosen = bin_of == k
        count = int(chosen.sum())
        sure = float(confidence[chosen].mean(dtype=np.float64)) if count else 0.0
        right = float(correct[chosen].mean(dtype=np.float64)) if count else 0.0
        bins.append(Bin(float(low), float(high), count, sure, right))
    return bins


def expected_error(bins: list[Bin]) -> float:
    """Return the ECE in [0, 1]: |accuracy - confidence| of the bins, weighted by their counts."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / max(total, 1)


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (doi:10.1080/01621459.1927.10502953).

    Unlike the normal approximation it stays in [0, 1] and is right at 0 and at `count` hits too.
    """
    share, z2 = hits / count, _Z95**2
    centre = share + z2 / (2 * count)
    half = _Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    scale = 1 + z2 / count
    return max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)
