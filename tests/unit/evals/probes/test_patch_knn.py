# SPDX-License-Identifier: Apache-2.0
"""Patches take their classes from the pixels of the nearest ones."""

import numpy as np

from vit_jax.devices import sharding
from vit_jax.evals.probes import patch_knn


def test_shares_of_patches() -> None:
    mask = np.array([[0, 0, 1], [0, 2, 255], [1, 1, 255]], np.uint8)
    # In a 3 x 3 image of 2 x 2 patches the first row and column have two pixels.
    found = patch_knn.class_shares(mask[None], (2, 2), 3)[0]
    np.testing.assert_allclose(found[0, 0], [3 / 4, 0, 1 / 4])
    np.testing.assert_allclose(found[0, 1], [0, 1, 0])
    np.testing.assert_allclose(found[1, 0], [0, 1, 0])
    assert not found[1, 1].any()


def test_neighbours_vote_for_the_classes_of_their_pixels() -> None:
    mesh = sharding.make_mesh(sharding.MeshConfig())
    east, north, west = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
    tokens = np.array([[[east, north], [west, west]]], np.float32)
    masks = np.array([[[0, 1], [2, 255]]], np.uint8)
    bank = patch_knn.Bank(tokens, masks, 3)
    assert len(bank.tokens) == 3  # one without labels is left out
    test = np.array([[[[2.0, 0.1], [-0.5, 0.0]]]], np.float32)
    near = bank.scores(test, 1, 0.1, mesh=mesh)
    np.testing.assert_allclose(near[0, 0], [[1, 0, 0], [0, 0, 1]])
    both = bank.scores(test[:, :, :1], 2, 1.0, mesh=mesh)[0, 0, 0]
    cosines = np.array([2.0, 0.1]) / np.hypot(2.0, 0.1)
    weights = np.exp(cosines) / np.exp(cosines).sum()
    np.testing.assert_allclose(both, [*weights, 0], rtol=1e-5)


def test_no_more_patches_are_kept_than_memory_holds(monkeypatch) -> None:
    monkeypatch.setattr(patch_knn, "MAX_PATCHES", 5)
    tokens = np.arange(32, dtype=np.float32).reshape(2, 4, 4, 1)
    masks = np.arange(32, dtype=np.uint8).reshape(2, 4, 4) % 3
    banks = [patch_knn.Bank(tokens, masks, 3, seed) for seed in (0, 0, 1)]
    first, same, other = (bank.tokens.ravel().tolist() for bank in banks)
    assert len(set(first)) == 5
    assert first == same != other
    classes = masks.ravel()[np.asarray(first, int)]
    assert banks[0].shares.argmax(axis=1).tolist() == classes.tolist()
