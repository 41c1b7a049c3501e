# SPDX-License-Identifier: Apache-2.0
"""Recall of images and texts against every order that equal similarities may come in."""

import itertools

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.evals.retrieval import recall


def brute_force(near: np.ndarray, own: np.ndarray, k: int) -> float:
    """Mean over queries of the share of orders, sorted by similarity, with an own target in k."""
    shares = []
    for row, mine in zip(near, own, strict=True):
        orders = [
            order
            for order in itertools.permutations(range(len(row)))
            if all(row[a] >= row[b] for a, b in itertools.pairwise(order))
        ]
        shares.append(np.mean([mine[list(order[:k])].any() for order in orders]))
    return float(np.mean(shares))


def test_recall_is_the_mean_over_the_orders_of_equal_ones() -> None:
    rng = np.random.default_rng(0)
    owner = np.array([2, 0, 0, 1, 2])
    own = owner == np.arange(3)[:, None]
    for _ in range(8):
        # Few values, so that many similarities are equal.
        images = rng.integers(0, 2, (3, 3)).astype(np.float32)
        texts = rng.integers(0, 2, (5, 3)).astype(np.float32)
        found = recall(images, texts, owner, k=(1, 2, 4))
        for k in (1, 2, 4):
            expected = brute_force(images @ texts.T, own, k)
            assert found[f"image_to_text_r{k}"] == pytest.approx(expected)
            expected = brute_force(texts @ images.T, own.T, k)
            assert found[f"text_to_image_r{k}"] == pytest.approx(expected)


def test_all_alike_score_what_guessing_does() -> None:
    same = np.ones((20, 4), np.float32)
    found = recall(same, same, np.arange(20), k=(1, 10, 50))
    assert found["image_to_text_r1"] == found["text_to_image_r1"] == pytest.approx(1 / 20)
    assert found["image_to_text_r10"] == pytest.approx(1 / 2)
    assert found["image_to_text_r50"] == 1


def test_an_image_without_a_text_cannot_be_found() -> None:
    with pytest.raises(UserError, match=r"^image 1 of 3 has no text$"):
        recall(np.eye(3, dtype=np.float32), np.eye(2, 3, dtype=np.float32), np.array([0, 2]))
