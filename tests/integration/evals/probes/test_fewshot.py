# SPDX-License-Identifier: Apache-2.0
"""Few-shot least squares against the definition of the minimum."""

import numpy as np
import pytest

from tests.unit.evals.probes.test_fewshot import blobs, minimum
from vit_jax.evals.probes import fewshot
from vit_jax.evals.probes.features import FeatureSet


def test_accuracy_is_of_the_chosen_images_alone(monkeypatch):
    monkeypatch.setattr(fewshot, "_ROWS", 7)  # of 50 test rows
    train, test = blobs(60, 3, 6, 0, spread=2.0), blobs(50, 3, 6, 1, spread=2.0)
    results = fewshot.run(train, test, shots=(1, 4), l2=(1.0, 1024.0), seeds=(3, 4))
    assert [dict(r.settings) for r in results] == [
        {"shots": n, "l2": l2} for n in (1, 4) for l2 in (1.0, 1024.0)
    ]
    expected = []
    for seed in (3, 4):
        order = fewshot.class_order(train.labels, 3, seed)
        chosen = np.concatenate([indices[:4] for indices in order])
        x, y = train.features[chosen], train.labels[chosen]
        guesses = minimum(x, y, 3, test.features, 1024.0).argmax(axis=1)
        expected.append(np.mean(guesses == test.labels))
    assert results[3].top1 == tuple(expected)
    assert results[3].mean == pytest.approx(np.mean(expected))
    assert results[3].deviation == pytest.approx(np.std(expected, ddof=1))
    assert expected[0] != expected[1]
    again = fewshot.run(train, test, shots=(1, 4), l2=(1.0, 1024.0), seeds=(3, 4))
    assert [r.top1 for r in again] == [r.top1 for r in results]


def test_a_class_with_few_images_gives_all_it_has():
    train, test = blobs(40, 3, 6, 0), blobs(50, 3, 6, 1)
    kept = np.flatnonzero((train.labels != 1) | (np.arange(40) < 8))
    few = FeatureSet(
        name="few",
        features=train.features[kept],
        labels=train.labels[kept],
        class_names=train.class_names,
    )
    assert 1 <= (few.labels == 1).sum() < 5
    count = int((few.labels == 1).sum())
    results = fewshot.run(few, test, shots=(count, 5))
    assert results[0].notes == ()
    assert results[1].notes == ("5 shots: 1 of 3 classes have fewer images, and give all",)
    chosen = np.concatenate([i[:5] for i in fewshot.class_order(few.labels, 3, seed=0)])
    assert (few.labels[chosen] == 1).sum() == (few.labels == 1).sum()
    scores = minimum(few.features[chosen], few.labels[chosen], 3, test.features, 1024.0)
    assert results[1].top1[0] == np.mean(scores.argmax(axis=1) == test.labels)
