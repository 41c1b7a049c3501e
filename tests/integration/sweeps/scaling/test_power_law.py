# SPDX-License-Identifier: Apache-2.0
"""E(C) = a (C + d)^-b + c: what is recovered, with what certainty, and what is refused."""

import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.sweeps.scaling.coverage import generators, hits, noisy, power_law
from tests.unit.sweeps.scaling.test_power_law import COMPUTE
from vit_jax.sweeps.scaling import CannotFit, fit_power_law


@pytest.mark.parametrize(
    "num,noise,a,b,c,d",
    [(8, 0.01, 0.5, 0.35, 0.1, 0.0), (15, 0.02, 0.5, 0.3, 0.1, 0.3), (12, 0.01, 0.5, 0.35, 0.0, 0)],
)
def test_intervals_hold_the_truth(num, noise, a, b, c, d) -> None:
    compute = np.geomspace(1e15, 1e18, num)

    def fit(trial: int, rng: np.random.Generator):
        return fit_power_law(compute, noisy(power_law(compute, a, b, c, d), noise, rng), seed=trial)

    counts = hits(fit, {"b": b, "c": c, "d": d * 1e15}, seed=1)
    assert min(counts.values()) >= 90, counts


def test_intervals_are_no_wider_than_they_need_be() -> None:
    # The estimate's own scatter over trials, times 2 x 1.96, is the narrowest honest interval.
    laws = []
    for trial, rng in generators(2):
        error = noisy(power_law(COMPUTE, 0.5, 0.3, 0.1, 0), 0.01, rng)
        laws.append(fit_power_law(COMPUTE, error, saturation=False, seed=trial))
    width = np.median([law.intervals["b"][1] - law.intervals["b"][0] for law in laws])
    assert width < 1.5 * 3.92 * np.std([law.b for law in laws])


def test_band_holds_the_law_also_beyond_the_runs() -> None:
    points = np.array([1e14, 1e15, 1e18, 1e19])
    true = power_law(points, 0.5, 0.3, 0.1, 1)
    inside = np.zeros(4)
    for trial, rng in generators(3):
        error = noisy(power_law(COMPUTE, 0.5, 0.3, 0.1, 1), 0.01, rng)
        low, high = fit_power_law(COMPUTE, error, seed=trial).band(points)
        inside += (low <= true) & (true <= high)
        assert (high - low)[3] > (high - low)[2], trial
    assert (inside >= 90).all(), inside


def test_d_is_dropped_where_it_leaves_b_open() -> None:
    # A factor of 12 in compute with noise does not tell saturation from a large exponent.
    compute = np.geomspace(1e15, 1.2e16, 8)
    error = noisy(power_law(compute, 0.5, 0.3, 0.0, 0), 0.03, np.random.default_rng(4))
    with refused_by("sweeps.scaling.runs.check_exponents", kind=CannotFit):
        fit_power_law(compute, error, saturation=True)
    assert fit_power_law(compute, error).fixed == ("d",)
