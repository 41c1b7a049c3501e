# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours against a loop over pairs, whatever is on the devices at a time."""

import jax
import numpy as np
import pytest

from tests.unit.evals.probes.test_fewshot import blobs
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.probes import knn


def mesh_of(num_devices):
    return sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:num_devices])


def test_nearest_are_sorted_and_ties_go_to_the_first():
    train = np.float32([[1, 0], [0, 2], [3, 0], [-1, 0], [1, 1], [0, 0]])
    similarity, index = knn.nearest(train, np.float32([[2, 0]]), 6, mesh=mesh_of(1))
    assert index.tolist() == [[0, 2, 4, 1, 5, 3]]
    np.testing.assert_allclose(similarity[0], [1, 1, np.sqrt(0.5), 0, 0, -1], atol=1e-6)


def test_votes():
    similarity = np.float32([[0.9, 0.8, 0.8], [0.9, 0.8, 0.1]])
    labels = np.int32([[2, 1, 1], [2, 1, 1]])
    # exp(9) against 2 exp(8): the nearest alone wins at T = 0.1, the two others at T = 1.
    assert knn.vote(similarity, labels, 3, 0.1).tolist() == [2, 2]
    assert knn.vote(similarity, labels, 3, 1.0).tolist() == [1, 1]
    assert knn.vote(similarity, labels, 3, 1e-4).tolist() == [2, 2]  # exp(9000) is no number
    assert knn.vote(np.float32([[0.5, 0.5]]), np.int32([[2, 1]]), 3, 0.1).tolist() == [1]


def test_votes_in_parts(monkeypatch):
    train, test = blobs(53, 4, 6, 0), blobs(41, 4, 6, 1)
    similarity, index = knn.nearest(train.features, test.features, 9, mesh=mesh_of(1))
    whole = knn.vote(similarity, train.labels[index], 4, 0.07)
    monkeypatch.setattr(knn, "_TEST_ROWS", 10)
    np.testing.assert_array_equal(knn.vote(similarity, train.labels[index], 4, 0.07), whole)


def test_k_by_default_is_what_there_are_images_for():
    assert knn.choose_k((), 1000, "x") == [10, 20, 100, 200]
    assert knn.choose_k((), 150, "x") == [10, 20, 100]
    assert knn.choose_k((), 7, "x") == [7]
    with pytest.raises(UserError, match=r"k=8: x has only 7 images"):
        knn.choose_k((2, 8), 7, "x")
