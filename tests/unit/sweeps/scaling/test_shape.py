# SPDX-License-Identifier: Apache-2.0
"""f(x, C) = alpha x^-a + (beta x^b + xi) C^-c + eps and the best x that follows."""

import json

import numpy as np
import pytest

from tests.unit.sweeps.scaling.coverage import SHAPE, noisy, shape, star
from vit_jax.sweeps.scaling import CannotFit, fit_shape, held_out

SIZE, COMPUTE = star(5, 4)
ERROR = noisy(shape(SIZE, COMPUTE), 0.005, np.random.default_rng(0))


def test_exact_law_is_recovered() -> None:
    law = fit_shape(SIZE, COMPUTE, shape(SIZE, COMPUTE))
    alpha, a, beta, b, xi, c, eps = SHAPE
    t = (law.unit / 1e18) ** -c
    expected = (alpha * 400**a, a, beta / 400**b * t, b, xi * t, c, eps, c / (a + b))
    found = (law.alpha, law.a, law.beta, law.b, law.xi, law.c, law.eps, law.s)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_optimum_is_the_least_error_of_its_compute() -> None:
    law = fit_shape(SIZE, COMPUTE, ERROR)
    sizes = np.geomspace(10, 1e5, 20001)
    for compute in (1e17, 1e20):
        least = sizes[np.argmin(law.predict(sizes, compute))]
        np.testing.assert_allclose(law.optimum(compute), least, rtol=1e-3)
    two = law.optimum([1e17, 1e20])
    np.testing.assert_allclose(np.log(two[1] / two[0]) / np.log(1000), law.s)


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
