# SPDX-License-Identifier: Apache-2.0
"""The runs that none beats, and runs held out."""

import numpy as np
import pytest

from vit_jax.analysis.scaling import CannotFit, fit_power_law, frontier, held_out


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
