# SPDX-License-Identifier: Apache-2.0
"""What features are worth without a label: by cases that are known, and what is told of a fall."""

import numpy as np
import pytest

from vit_jax.evals import drift


def _rows(seed: int, count: int = 60, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def test_rank_and_similarity_of_known_features() -> None:
    corners = np.float32(np.concatenate([np.eye(5), -np.eye(5)]))
    assert drift.effective_rank(corners) == pytest.approx(5)
    assert drift.effective_rank(3 + 2 * corners) == pytest.approx(5)  # neither place nor scale
    line = np.outer(np.arange(9), np.ones(4)).astype(np.float32)
    assert drift.effective_rank(line) == pytest.approx(1)
    # Two directions, of which one has a hundredth of the power: exp of the entropy.
    shares = np.array([100, 1]) / 101
    two = np.float32([[10, 0], [-10, 0], [0, 1], [0, -1]])
    wanted = np.exp(-(shares * np.log(shares)).sum())
    assert drift.effective_rank(two) == pytest.approx(wanted)
    equal = np.full((7, 3), 1e3, np.float32) / 3
    assert drift.effective_rank(equal) == 0
    assert drift.similarity(equal) == pytest.approx(1)
    assert drift.similarity(np.eye(4, dtype=np.float32)) == pytest.approx(0)
    x = _rows(0)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [a @ b for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]
    assert drift.similarity(x) == pytest.approx(np.mean(pairs), abs=1e-6)


def test_distances_and_neighbours_beside_the_starts() -> None:
    x, other = _rows(0), _rows(1)
    turned = np.linalg.qr(_rows(2, 8))[0]
    assert drift.cka(x, x) == pytest.approx(1)
    assert drift.cka(x, 7 * x @ turned + 1) == pytest.approx(1)
    gram, theirs = ((a - a.mean(0)) @ (a - a.mean(0)).T for a in (x, other))
    wanted = (gram * theirs).sum() / np.linalg.norm(gram) / np.linalg.norm(theirs)
    assert drift.cka(x, other) == pytest.approx(wanted, rel=1e-5)
    assert drift.cka(x, np.ones_like(x)) == 0
    assert drift.overlap(x, 7 * x @ turned, 5) == 1
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, other)]
    shared = []
    for i in range(len(x)):
        near = [sorted(range(len(x)), key=lambda j, a=a, i=i: -(a[i] @ a[j])) for a in unit]
        first, second = ({j for j in each if j != i and each.index(j) < 6} for each in near)
        shared.append(len(first & second) / 5)
    assert drift.overlap(x, other, 5) == pytest.approx(np.mean(shared))
    assert drift.overlap(x[:3], other[:3], 10) == 1  # all others are neighbours


def test_a_collapse_is_told_in_words() -> None:
    told = drift.collapse
    assert told(40.0, 0.99, 50.0, labelled=False) == ""
    assert "are the same" in told(0.0, 1.0, 50.0, labelled=True)
    assert "are the same" in told(3.0, 1 - 1e-8, 50.0, labelled=False)
    assert "one line, of effective rank 1.20" in told(1.2, 0.9, 2.0, labelled=False)
    assert "fell from 50.0 at the start to 4.0" in told(4.0, 0.9, 50.0, labelled=False)
    assert told(5.5, 0.9, 50.0, labelled=False) == ""
    assert told(1.2, 0.9, 50.0, labelled=True) == ""  # two classes may well lie on a line
