# SPDX-License-Identifier: Apache-2.0
"""Few-shot least squares against the definition of the minimum."""

import numpy as np
import pytest

from vit_jax.evals.probes import fewshot
from vit_jax.evals.probes.features import FeatureSet


def blobs(count, num_classes, dim, seed, *, spread=1.0):
    """Make features around a centre a class; the centres are the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(num_classes, dim))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count, dtype=np.int32) % num_classes)
    features = 3 + centres[labels] + spread * rng.normal(size=(count, dim))
    names = [f"c{k}" for k in range(num_classes)]
    return FeatureSet(
        name=f"blobs[{seed}]",
        features=features.astype(np.float32),
        labels=labels,
        class_names=names,
    )


def minimum(x, y, num_classes, test, l2):
    """Solve min |A w - Y|^2 + l2 |w|^2 as the least-squares problem [A; sqrt(l2) I] w = [Y; 0]."""
    mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64) + 1e-5
    a = np.c_[(x - mean) / deviation, np.full(len(x), 100.0)]
    targets = np.where(np.arange(num_classes) == y[:, None], 1.0, -1.0)
    rows = np.r_[a, np.sqrt(l2) * np.eye(a.shape[1])]
    zeros = np.zeros((a.shape[1], num_classes))
    weights = np.linalg.lstsq(rows, np.r_[targets, zeros], rcond=None)[0]
    return np.c_[(test - mean) / deviation, np.full(len(test), 100.0)] @ weights


@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**10, 2.0**20])
@pytest.mark.parametrize("count", [12, 80])  # fewer images than features, and more
def test_is_the_minimum(count, l2):
    train, test = blobs(count, 4, 20, 0, spread=2.0), blobs(60, 4, 20, 1, spread=2.0)
    found = fewshot.fit(train.features, train.labels, 4, l2)(test.features)
    expected = minimum(train.features, train.labels, 4, test.features, l2)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_a_constant_feature_does_no_harm():
    train, test = blobs(40, 3, 5, 0), blobs(30, 3, 5, 1)
    constant = [np.c_[each.features, np.ones(len(each.features))] for each in (train, test)]
    with_it = fewshot.fit(constant[0], train.labels, 3, 1.0)(constant[1])
    without = fewshot.fit(train.features, train.labels, 3, 1.0)(test.features)
    np.testing.assert_allclose(with_it, without, rtol=1e-6)


def test_shots_are_big_visions():
    labels = np.int32([0, 1, 0, 2, 1, 0, 2, 1, 0, 2])
    rng = np.random.default_rng(5)
    expected = [rng.permutation(np.where(labels == k)[0])[:2] for k in range(3)]
    found = [indices[:2] for indices in fewshot.class_order(labels, 3, seed=5)]
    np.testing.assert_array_equal(found, expected)
