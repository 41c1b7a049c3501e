# SPDX-License-Identifier: Apache-2.0
"""The logistic probe against scikit-learn's parts put together by hand."""

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.unit.evals.probes.test_fewshot import blobs
from vit_jax.errors import UserError
from vit_jax.evals.probes import logistic


def test_is_scikit_learns_on_standardised_features():
    train, test = blobs(60, 3, 5, 0, spread=2.0), blobs(50, 3, 5, 1, spread=2.0)
    scale = np.float32([1, 10, 100, 0.1, 1])
    x, x_test = (each.features.astype(np.float64) * scale for each in (train, test))
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    direct = LogisticRegression(C=0.1, max_iter=1000).fit((x - mean) / deviation, train.labels)
    model = logistic.fit(train.features * scale, train.labels, 0.1)
    np.testing.assert_allclose(
        model.predict_proba(test.features * scale),
        direct.predict_proba((x_test - mean) / deviation),
        atol=1e-4,
    )


@pytest.mark.parametrize("peak", [-6.0, -3.3, 0.0, 1.7, 6.0])
def test_search_halves_its_step_around_the_best(peak):
    calls = []

    def score(exponent):
        calls.append(exponent)
        return (-abs(exponent - peak),)

    assert abs(logistic.search(score) - peak) <= 1 / 16
    assert calls[:7] == [-6, -4, -2, 0, 2, 4, 6]
    assert len(calls) == len(set(calls)) <= 7 + 8
    assert all(-6 <= call <= 6 for call in calls)


def test_of_equal_scores_the_strongest_is_taken():
    assert logistic.search(lambda exponent: (float(exponent >= 1),)) == 1.0
    assert logistic.search(lambda exponent: (0.0,)) == -6.0


def test_likelihood_tells_equal_accuracies_apart():
    train = blobs(60, 3, 5, 0, spread=0.1)
    strong, weak = (logistic.fit(train.features, train.labels, c) for c in (1e-3, 1.0))
    first, second = (logistic.quality(m, train.features, train.labels) for m in (strong, weak))
    assert first[0] == second[0] == 1.0
    assert first[1] < second[1] < 0
    assert second[1] == pytest.approx(
        np.log(weak.predict_proba(train.features)[np.arange(60), train.labels]).mean()
    )


def test_held_out_is_a_fifth_of_every_class():
    labels = np.repeat(np.int32([0, 1, 2, 4]), [50, 7, 2, 1])
    held = logistic.held_out(labels, 5, seed=0)
    assert [int(held[labels == k].sum()) for k in (0, 1, 2, 4)] == [10, 1, 1, 0]
    np.testing.assert_array_equal(held, logistic.held_out(labels, 5, seed=0))
    assert (held != logistic.held_out(labels, 5, seed=1)).any()


def test_needs_two_images_of_a_class():
    train = blobs(60, 3, 5, 0)
    first = [int(np.flatnonzero(train.labels == k)[0]) for k in range(3)]
    single = dataclasses.replace(train, features=train.features[first], labels=train.labels[first])
    with pytest.raises(UserError, match="one image a class"):
        logistic.run(single, train)
