# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours against a loop over pairs, whatever is on the devices at a time."""

import numpy as np
import pytest

from tests.unit.evals.probes.test_fewshot import blobs
from tests.unit.evals.probes.test_knn import mesh_of
from vit_jax.evals.probes import knn


def brute_force(train, test, k, temperature):
    """Follow DINO's definition example by example in double precision."""
    guesses = []
    for x in test.features.astype(np.float64):
        votes = np.zeros(train.num_classes)
        similar = [float(x @ t / np.linalg.norm(x) / np.linalg.norm(t)) for t in train.features]
        for i in sorted(range(len(similar)), key=lambda i: -similar[i])[:k]:
            votes[train.labels[i]] += np.exp(similar[i] / temperature)
        guesses.append(votes.argmax())
    return np.array(guesses)


@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("temperature", [0.07, 2.0])
def test_is_the_definition(num_devices, temperature, monkeypatch):
    # 41 test rows in parts of 16, 53 training rows in parts of 10: the last of both is padded, and
    # a part of the training set is smaller than k.
    monkeypatch.setattr(knn, "_TEST_ROWS", 16)
    monkeypatch.setattr(knn, "_TRAIN_ROWS", 10)
    train, test = blobs(53, 4, 6, 0, spread=2.0), blobs(41, 4, 6, 1, spread=2.0)
    ks = (1, 5, 12, 53)
    found = knn.run(train, test, mesh=mesh_of(num_devices), k=ks, temperature=temperature)
    assert [r.settings["k"] for r in found] == list(ks)
    for k, result in zip(ks, found, strict=True):
        right = brute_force(train, test, k, temperature) == test.labels
        assert result.top1 == (right.mean(),), k
    assert len({r.top1 for r in found}) > 2
