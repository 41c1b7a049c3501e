# SPDX-License-Identifier: Apache-2.0
"""Scores of segmentations by hand, and how those of patches become masks."""

import numpy as np

from vit_jax.evals.probes import segmentation
from vit_jax.evals.probes.segmentation import Segmentation

TRUTH = np.array([[0, 0, 1], [1, 255, 1]], np.uint8)
GUESS = np.array([[0, 1, 1], [1, 0, 2]], np.uint8)


def test_scores_by_hand() -> None:
    counts = segmentation.confusion(TRUTH, GUESS, 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    found = Segmentation("", {}, counts)
    # Class 3 is nowhere, and counts as nothing; class 2 is predicted alone.
    np.testing.assert_allclose(found.iou, [1 / 2, 2 / 4, 0, np.nan])
    assert found.miou == (1 / 2 + 2 / 4) / 3
    assert found.accuracy == 3 / 5


def test_scores_are_enlarged_between_the_centres_of_patches() -> None:
    scores = np.zeros((1, 2, 2), np.float32)
    scores[0, :, 1] = [-1, 3]  # above zero from 1/4 of the way between the centres 0.25 and 0.75
    mask = segmentation.enlarge(scores, (2, 16))
    assert mask.tolist() == [[0] * 6 + [1] * 10] * 2
    many = np.random.default_rng(0).normal(size=(3, 4, 150)).astype(np.float32)
    np.testing.assert_array_equal(segmentation.enlarge(many, (3, 4)), many.argmax(axis=-1))
