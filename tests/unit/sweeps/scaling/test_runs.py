# SPDX-License-Identifier: Apache-2.0
"""The runs that none beats, and runs held out."""

from typing import NamedTuple

import numpy as np
import pytest

from vit_jax.sweeps.scaling import CannotFit, fit_power_law, frontier, held_out

COMPUTE = np.array([1e3, 1e6, 1e4, 1e5, 1e6])
ERROR = 100 / np.sqrt(COMPUTE)


def test_frontier_keeps_the_runs_that_none_beats() -> None:
    compute = [4.0, 1.0, 2.0, 2.0, 8.0, 16.0]
    error = [0.5, 0.9, 0.6, 0.7, 0.5, 0.4]
    assert frontier(compute, error).tolist() == [1, 2, 0, 5]


def test_frontier_agrees_with_its_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        # Few different values, so that there are ties.
        compute, error = rng.integers(1, 9, (2, 30)).astype(float)
        kept = frontier(compute, error)
        points = set(zip(compute, error, strict=True))
        best = {
            (c, e)
            for c, e in points
            if not any((x <= c and y <= e) and (x, y) != (c, e) for x, y in points)
        }
        assert {(compute[i], error[i]) for i in kept} == best
        assert len(kept) == len(best)
        assert (np.diff(compute[kept]) > 0).all()


def test_frontier_of_nothing_is_empty() -> None:
    assert len(frontier([], [])) == 0
    with pytest.raises(CannotFit, match="error of run 1 is nan"):
        frontier([1.0, 2.0], [1.0, float("nan")])


def test_the_largest_runs_are_held_out_with_their_repeats() -> None:
    compute = np.array([1, 3, 10, 30, 100, 300, 1000, 1000.0])
    error = compute**-0.3
    error[-1] *= 1.1
    result = held_out(fit_power_law, (compute,), error, compute, share=0.1)
    assert result.compute == (1000, 1000)
    np.testing.assert_allclose(result.predicted, 1000**-0.3, rtol=1e-6)
    np.testing.assert_allclose(result.relative_error, [0, 1 / 1.1 - 1], atol=1e-6)
    assert result.worst == min(result.relative_error)
    assert len(held_out(fit_power_law, (compute,), error, compute, share=0.4).compute) == 3


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(CannotFit, match="in every column"):
        held_out(fit_power_law, ([1.0, 2.0],), [1.0, 2.0, 3.0], [1.0, 2.0])


class Line(NamedTuple):
    """A line through the logarithms; its band is a tenth to either side."""

    slope: float
    offset: float

    def predict(self, compute: np.ndarray) -> np.ndarray:
        return np.exp(self.offset + self.slope * np.log(compute))

    def band(self, compute: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0.9 * self.predict(compute), 1.1 * self.predict(compute)


def _fit(seen: list) -> object:
    def fit(compute: np.ndarray, error: np.ndarray) -> Line:
        seen.append(compute.tolist())
        return Line(*np.polyfit(np.log(compute), np.log(error), 1))

    return fit


def test_runs_of_equal_compute_are_held_out_together() -> None:
    seen: list = []
    found = held_out(_fit(seen), (COMPUTE,), ERROR, COMPUTE, share=0.2)
    assert seen == [[1e3, 1e4, 1e5]]
    assert found.compute == (1e6, 1e6)
    np.testing.assert_allclose(found.predicted, [0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(found.high, [0.11, 0.11], rtol=1e-6)


def test_the_worst_error_keeps_its_sign() -> None:
    error = ERROR.copy()
    error[1] *= 2  # predicted at half of what was measured
    found = held_out(_fit([]), (COMPUTE,), error, COMPUTE)
    assert found.worst == pytest.approx(-0.5)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(CannotFit):
        held_out(_fit([]), (COMPUTE[:-1],), ERROR, COMPUTE)
