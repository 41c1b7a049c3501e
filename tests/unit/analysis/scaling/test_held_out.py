# SPDX-License-Identifier: Apache-2.0
"""The runs of most compute are predicted by a law of the others."""

from typing import NamedTuple

import numpy as np
import pytest

from vit_jax.analysis.scaling.held_out import held_out
from vit_jax.analysis.scaling.runs import CannotFit

COMPUTE = np.array([1e3, 1e6, 1e4, 1e5, 1e6])
ERROR = 100 / np.sqrt(COMPUTE)


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
