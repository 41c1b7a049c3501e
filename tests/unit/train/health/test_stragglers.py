# SPDX-License-Identifier: Apache-2.0
"""The log names the host that the others wait for."""

import jax
import numpy as np
import pytest

from vit_jax.train.health import stragglers
from vit_jax.train.health.stragglers import Stragglers
from vit_jax.train.report.goodput import Phase

SCALARS = ("perf/slowest_host", "perf/slowest_host_lag")


def test_the_slowest_is_held_against_the_median() -> None:
    # Seconds by itself, and of all steps.
    four = stragglers.compare(np.array([[1, 10], [2, 10], [6, 10], [3, 10]], np.float32))
    assert list(four.items()) == [(SCALARS[0], 2.0), (SCALARS[1], pytest.approx(0.4))]
    three = stragglers.compare(np.array([[1, 10], [6, 10], [2, 10]], np.float32))
    assert list(three.items()) == [(SCALARS[0], 1.0), (SCALARS[1], pytest.approx(0.4))]
    two = stragglers.compare(np.array([[6, 10], [1, 10]], np.float32))
    assert list(two.items()) == [(SCALARS[0], 0.0), (SCALARS[1], pytest.approx(0.5))]


def test_only_what_a_host_does_by_itself_counts_since_the_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[list[float]] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        stragglers, "_gather", lambda mine: sent.append(mine.tolist()) or np.stack([mine, mine])
    )
    seconds = dict.fromkeys(Phase, 100.0)
    compared = Stragglers()
    assert compared.scalars(seconds) == {}  # known one line later
    seconds |= {Phase.DATA: 101.0, Phase.OTHER: 100.5, Phase.STEP: 102.5, Phase.EVAL: 900.0}
    assert set(compared.scalars(seconds)) == set(SCALARS)
    assert sent == [[200.0, 300.0], [1.5, 4.0]]


def test_one_process_has_no_slowest() -> None:
    compared = Stragglers()
    for _ in range(2):
        assert compared.scalars(dict.fromkeys(Phase, 1.0)) == {}
