# SPDX-License-Identifier: Apache-2.0
"""E(C) = a (C + d)^-b + c: what is recovered, with what certainty, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

from tests.unit.sweeps.scaling.coverage import noisy, power_law
from vit_jax.sweeps.scaling import CannotFit, fit_power_law, held_out
from vit_jax.sweeps.scaling.fitting import around

COMPUTE = np.geomspace(1e15, 1e18, 12)

# Dosovitskiy et al. 2020 (arXiv:2010.11929): ImageNet top-1 of Table 5 and exaFLOPs of Table 6,
# pre-training on JFT. B/32, L/32 and B/16 saw 7 epochs, H/14 14; Table 6 has L/16 at 7 epochs (783)
# and at 14 (1567), and Table 5 shows the latter's 87.12.
JFT_EXAFLOPS = np.array([55.0, 196, 224, 1567, 4262])
JFT_ERROR = 1 - np.array([80.73, 84.37, 84.15, 87.12, 88.04]) / 100
# The same models pre-trained on ImageNet alone, of the same number of epochs: their costs are in
# the ratio of those on JFT for 7 epochs.
I1K_COST = np.array([55.0, 196, 224, 783])
I1K_ERROR = 1 - np.array([73.38, 71.16, 77.91, 76.53]) / 100


def test_exact_law_is_recovered() -> None:
    law = fit_power_law(COMPUTE, power_law(COMPUTE, 0.5, 0.3, 0.05, 2.0))
    found = (law.a * (1e15 / law.unit) ** -law.b, law.b, law.c, law.d)
    np.testing.assert_allclose(found, (0.5, 0.3, 0.05, 2e15), rtol=1e-6)
    assert law.fixed == ()
    assert law.describe() == "E(C) = 0.251 ((C + 2e+15)/1e16)^-0.3 + 0.05"


def test_one_bad_run_moves_little() -> None:
    error = noisy(power_law(COMPUTE, 0.5, 0.3, 0.05, 0), 0.005, np.random.default_rng(0))
    clean = fit_power_law(COMPUTE, error, saturation=False)
    error[5] *= 1.3
    assert abs(fit_power_law(COMPUTE, error, saturation=False).b - clean.b) < 0.02


def test_unit_and_order_mean_nothing() -> None:
    rng = np.random.default_rng(0)
    error = noisy(power_law(COMPUTE, 0.5, 0.3, 0.05, 1), 0.01, rng)
    law = fit_power_law(COMPUTE, error)
    order = rng.permutation(len(error))
    assert fit_power_law(COMPUTE[order], error[order]) == law
    scaled = fit_power_law(COMPUTE * 3.7e5, error)
    np.testing.assert_allclose(scaled.b, law.b, rtol=1e-6)
    np.testing.assert_allclose(scaled.intervals["b"], law.intervals["b"], rtol=1e-4)
    np.testing.assert_allclose(scaled.d, law.d * 3.7e5, rtol=1e-5)
    np.testing.assert_allclose(scaled.predict(3.7e24), law.predict(1e19), rtol=1e-6)
    half = fit_power_law(COMPUTE, error / 2)
    np.testing.assert_allclose((half.a, half.c), (law.a / 2, law.c / 2), rtol=1e-5)


def test_same_seed_same_intervals() -> None:
    error = noisy(power_law(COMPUTE, 0.5, 0.3, 0.05, 1), 0.01, np.random.default_rng(0))
    law = fit_power_law(COMPUTE, error, seed=3)
    assert law == fit_power_law(COMPUTE, error, seed=3)
    other = fit_power_law(COMPUTE, error, seed=4)
    assert law.b == other.b
    assert law.intervals != other.intervals


def test_json_holds_the_law() -> None:
    law = fit_power_law(COMPUTE, power_law(COMPUTE, 0.5, 0.3, 0.05, 0))
    stored = json.loads(json.dumps(law.to_json()))
    assert stored["b"] == law.b
    assert "draws" not in stored
    assert json.loads(json.dumps(dataclasses.asdict(law)))["draws"][0] == list(law.draws[0])


def test_few_runs_fit_fewer_parameters() -> None:
    error = power_law(COMPUTE, 0.5, 0.3, 0.05, 1)
    assert fit_power_law(COMPUTE[4:], error[4:]).fixed == ()
    assert fit_power_law(COMPUTE[5:], error[5:]).fixed == ("d",)
    assert fit_power_law(COMPUTE[::3], error[::3]).fixed == ("c", "d")
    # Repeats of one compute say nothing about the form.
    assert fit_power_law(np.repeat(COMPUTE[::2], 4), np.repeat(error[::2], 4)).fixed == ("d",)


def test_published_numbers_follow_a_law() -> None:
    with pytest.raises(CannotFit, match="5 different computes: d needs at least 8"):
        fit_power_law(JFT_EXAFLOPS, JFT_ERROR, saturation=True)
    law = fit_power_law(JFT_EXAFLOPS, JFT_ERROR)
    assert law.fixed == ("d",)
    assert 0.2 < law.b < 0.5
    assert 0 < law.c < JFT_ERROR.min()
    np.testing.assert_allclose(law.predict(JFT_EXAFLOPS), JFT_ERROR, rtol=0.025)
    # 87.12 at 7 epochs would lie twice as far off any law.
    other = fit_power_law(np.array([55.0, 196, 224, 783, 4262]), JFT_ERROR)
    assert other.noise > 2 * law.noise


def test_largest_published_model_is_foretold() -> None:
    result = held_out(fit_power_law, (JFT_EXAFLOPS,), JFT_ERROR, JFT_EXAFLOPS)
    assert result.compute == (4262,)
    assert abs(result.worst) < 0.08  # 11.3 % of error where 11.96 % was measured
    assert result.low[0] < result.measured[0] < result.high[0]


def test_published_numbers_without_gain_are_refused() -> None:
    with pytest.raises(CannotFit, match="does not fall with compute by more than its noise"):
        fit_power_law(I1K_COST, I1K_ERROR)


@pytest.mark.parametrize(
    "compute,error,message",
    [
        (COMPUTE[:3], [3.0, 2.0, 1.0], "3 different computes: a power law needs at least 4"),
        ([1, 1, 2, 2, 30, 30], [5, 5, 4, 4, 3, 3], "3 different computes"),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], "computes span a factor of 5: .* at least 10"),
        ([1, 10, 100, 1000], [1.0, 1.1, 1.2, 1.3], "error rises with compute"),
        ([1, 10, 100, 1e3, 1e4], [1, 1.2, 0.9, 1.1, 0.95], "by more than its noise"),
        (10.0 ** np.arange(10), [9, 5, 3, 2, 1.5, 1.3, 1.4, 1.5, 1.6, 1.7], "rises again from"),
        ([1, 10, -100, 1000], [4, 3, 2, 1], "compute of run 2 is -100"),
        ([1, 10, 100, 1000], [4, 3, float("nan"), 1], "error of run 2 is nan"),
        ([1, 10, 100, float("inf")], [4, 3, 2, 1], "compute of run 3 is inf"),
        ([1, 10, 100, 1000], [4, 3, 0, 1], "error of run 2 is 0"),
        ([1, 10, 100, 1000], [4, 3, 1], "one number is needed"),
        ([], [], "0 different computes"),
        (np.ones((4, 2)), np.ones((4, 2)), "not of shape"),
        # So few and so noisy that a step fits as well as a logarithm.
        (np.geomspace(1, 30, 5), [0.579, 0.303, 0.324, 0.234, 0.2], "do not determine b"),
    ],
)
def test_runs_that_support_no_law_are_refused(compute, error, message) -> None:
    with pytest.raises(CannotFit, match=message) as caught:
        fit_power_law(compute, error)
    assert "\n" not in str(caught.value)


def test_interval_holds_the_estimate_and_nothing_negative() -> None:
    low, high = around(np.linspace(-1, 1, 300), np.float64(3.0))
    assert (low, high) == (0, 3)
