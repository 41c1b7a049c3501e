# SPDX-License-Identifier: Apache-2.0
"""f(x, C) = alpha x^-a + (beta x^b + xi) C^-c + eps and the best x that follows."""

import numpy as np
import pytest

from tests.unit.sweeps.scaling.coverage import SHAPE, generators, hits, noisy, shape, star
from tests.unit.sweeps.scaling.test_shape import COMPUTE, ERROR, SIZE
from vit_jax.sweeps.scaling import fit_shape


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
