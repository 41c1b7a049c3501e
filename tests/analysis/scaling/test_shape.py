# SPDX-License-Identifier: Apache-2.0
"""f(x, C) = alpha x^-a + (beta x^b + xi) C^-c + eps and the best x that follows."""

import json

import numpy as np
import pytest

from tests.analysis.scaling.coverage import SHAPE, generators, hits, noisy, shape, star
from vit_jax.analysis.scaling import CannotFit, fit_shape, held_out

SIZE, COMPUTE = star(5, 4)
ERROR = noisy(shape(SIZE, COMPUTE), 0.005, np.random.default_rng(0))


def test_exact_law_is_recovered() -> None:
    law = fit_shape(SIZE, COMPUTE, shape(SIZE, COMPUTE))
    alpha, a, beta, b, xi, c, eps = SHAPE
    t = (law.unit / 1e18) ** -c
    expected = (alpha * 400**a, a, beta / 400**b * t, b, xi * t, c, eps, c / (a + b))
    found = (law.alpha, law.a, law.beta, law.b, law.xi, law.c, law.eps, law.s)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("sweep,noise,floors", [((5, 4), 0.01, False), ((6, 5), 0.02, True)])
def test_intervals_hold_the_truth(sweep, noise, floors) -> None:
    size, compute = star(*sweep)
    exact = shape(size, compute, floors)

    def fit(trial: int, rng: np.random.Generator):
        return fit_shape(size, compute, noisy(exact, noise, rng), seed=trial)

    _, a, _, b, _, c, eps = SHAPE
    truth = {"s": c / (a + b), "a": a, "b": b, "c": c, "eps": floors * eps}
    counts = hits(fit, truth, seed=0)
    assert min(counts.values()) >= 90, counts


def test_optimum_is_the_least_error_of_its_compute() -> None:
    law = fit_shape(SIZE, COMPUTE, ERROR)
    sizes = np.geomspace(10, 1e5, 20001)
    for compute in (1e17, 1e20):
        least = sizes[np.argmin(law.predict(sizes, compute))]
        np.testing.assert_allclose(law.optimum(compute), least, rtol=1e-3)
    two = law.optimum([1e17, 1e20])
    np.testing.assert_allclose(np.log(two[1] / two[0]) / np.log(1000), law.s)


def test_bands_hold_the_truth() -> None:
    exact = fit_shape(SIZE, COMPUTE, shape(SIZE, COMPUTE))
    inside = 0
    for trial, rng in generators(1):
        law = fit_shape(SIZE, COMPUTE, noisy(shape(SIZE, COMPUTE), 0.01, rng), seed=trial)
        low, high = law.band(1000, 1e21)
        inside += low <= exact.predict(1000, 1e21) <= high
    assert inside >= 90


def test_unit_and_order_mean_nothing() -> None:
    law = fit_shape(SIZE, COMPUTE, ERROR)
    order = np.random.default_rng(0).permutation(len(ERROR))
    assert fit_shape(SIZE[order], COMPUTE[order], ERROR[order]) == law
    scaled = fit_shape(SIZE / 64, COMPUTE * 300, ERROR)
    np.testing.assert_allclose(scaled.s, law.s, rtol=1e-4)
    np.testing.assert_allclose(scaled.optimum(3e21), law.optimum(1e19) / 64, rtol=1e-4)


def test_law_is_written_and_stored() -> None:
    law = fit_shape(SIZE, COMPUTE, shape(SIZE, COMPUTE))
    best = float(law.optimum(law.unit))
    assert law.describe() == f"x(C) = {best:.3g} (C/{law.unit:.0e})^0.455".replace("e+", "e")
    assert json.loads(json.dumps(law.to_json()))["s"] == law.s


def test_larger_computes_are_foretold() -> None:
    result = held_out(fit_shape, (SIZE, COMPUTE), ERROR, COMPUTE)
    assert set(result.compute) == {COMPUTE.max()}
    assert len(result.compute) == 5
    assert abs(result.worst) < 0.1


BOTH = star(6, 5)


@pytest.mark.parametrize(
    "size,compute,error,message",
    [
        (SIZE[:11], COMPUTE[:11], ERROR[:11], "11 runs: .* needs 12"),
        (SIZE * 0 + 64, COMPUTE, ERROR, "1 different sizes"),
        (SIZE, COMPUTE * 0 + 1, ERROR, "1 different computes"),
        (SIZE**0.3, COMPUTE, ERROR, "sizes span a factor of 2.83"),
        (SIZE, COMPUTE, ERROR * COMPUTE**0.5, "error rises with compute"),
        # No size is too large here: nothing says where the best lies.
        (*BOTH, BOTH[0] ** -0.5 + (BOTH[1] / 1e17) ** -0.3, "do not determine b|lies outside"),
    ],
)
def test_runs_that_support_no_law_are_refused(size, compute, error, message) -> None:
    jitter = np.exp(1e-3 * np.random.default_rng(0).standard_normal(len(error)))
    with pytest.raises(CannotFit, match=message):
        fit_shape(size, compute, error * jitter)


def test_best_size_outside_those_tried_is_refused() -> None:
    size, compute = star(8, 6)
    # Far from the best, 350 to 3500: the curvature is there, the minimum is not.
    error = noisy(shape(size * 200, compute), 1e-4, np.random.default_rng(0))
    with pytest.raises(CannotFit, match=r"lies outside those tried .* try smaller ones"):
        fit_shape(size, compute, error)
