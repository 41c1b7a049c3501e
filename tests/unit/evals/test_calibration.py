# SPDX-License-Identifier: Apache-2.0
"""Calibration against the paper's formula written out, intervals against SciPy's."""

import numpy as np
import pytest
from scipy.stats import binomtest

from vit_jax.evals.calibration import expected_error, reliability, wilson


def test_known_bins_and_their_error():
    confidence = np.array([0.30, 0.45, 0.48, 0.90, 0.95, 1.0])
    correct = np.array([True, False, True, True, True, False])
    bins = reliability(confidence, correct, num_bins=2)
    assert [(each.low, each.high, each.count) for each in bins] == [(0, 0.5, 3), (0.5, 1, 3)]
    assert [each.accuracy for each in bins] == pytest.approx([2 / 3, 2 / 3])
    assert [each.confidence for each in bins] == pytest.approx([0.41, 0.95])
    assert expected_error(bins) == pytest.approx((abs(2 / 3 - 0.41) + abs(2 / 3 - 0.95)) / 2)


def test_matches_the_formula_written_as_loops():
    rng = np.random.default_rng(0)
    confidence = rng.random(500).astype(np.float32)
    correct = rng.random(500) < confidence * 6 % 1  # too sure here, not sure enough there
    error = 0.0
    for m in range(1, 16):
        inside = [i for i in range(500) if (m - 1) / 15 < confidence[i] <= m / 15]
        if inside:
            accuracy = sum(bool(correct[i]) for i in inside) / len(inside)
            sure = sum(float(confidence[i]) for i in inside) / len(inside)
            error += len(inside) / 500 * abs(accuracy - sure)
    assert expected_error(reliability(confidence, correct)) == pytest.approx(error, rel=1e-12)


def test_edges_belong_to_the_bin_below_and_nothing_is_lost():
    confidence = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    bins = reliability(confidence, np.ones(5, bool), num_bins=4)
    assert [each.count for each in bins] == [2, 1, 1, 1]


def test_sure_and_right_is_calibrated():
    assert expected_error(reliability(np.ones(7), np.ones(7, bool))) == 0
    assert expected_error(reliability(np.ones(7), np.zeros(7, bool))) == 1


@pytest.mark.parametrize("hits, count", [(0, 9), (9, 9), (1, 2), (354, 360), (38_000, 50_000)])
def test_wilson_interval_is_scipys(hits, count):
    low, high = binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson(hits, count) == pytest.approx((low, high), abs=1e-12)
