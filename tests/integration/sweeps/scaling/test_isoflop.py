# SPDX-License-Identifier: Apache-2.0
"""Parabolas through runs of one compute, and the power law through their minima."""

import numpy as np
import pytest

from tests.unit.sweeps.scaling.coverage import chinchilla, generators, hits, isoflops, noisy
from tests.unit.sweeps.scaling.test_isoflop import EXAMPLES, FLOPS, PARAMS
from vit_jax.sweeps.scaling import CannotFit, fit_isoflop


@pytest.mark.parametrize("sweep,noise", [((3, 4, 8), 0.01), ((4, 5, 4), 0.02), ((5, 6, 8), 0.005)])
def test_intervals_hold_the_truth(sweep, noise) -> None:
    params, examples, flops = isoflops(*sweep)
    exact = chinchilla(params, examples)

    def fit(trial: int, rng: np.random.Generator):
        return fit_isoflop(params, noisy(exact, noise, rng), flops, seed=trial)

    counts = hits(fit, {"a": 7 / 15, "b": 8 / 15}, seed=0)
    assert min(counts.values()) >= 90, counts


def test_a_budget_of_uncertain_minimum_counts_for_less() -> None:
    best = 3e6 * np.array([1, 4, 16, 64.0])
    reach = np.array([8, 8, 8, 1.7])[:, None]  # the last budget's sizes are too near each other
    params = best[:, None] * reach ** np.linspace(-1, 1, 6)
    flops = np.repeat([1e16, 1e17, 1e18, 1e19], 6)
    exact = np.exp(0.05 * np.log(params / best[:, None]) ** 2).ravel()
    weighted, plain = [], []
    for trial, rng in generators(2):
        try:
            law = fit_isoflop(params.ravel(), noisy(exact, 0.003, rng), flops, seed=trial)
        except CannotFit:
            continue
        points = np.log([(budget.flops, budget.params) for budget in law.budgets]).T
        weighted.append(law.a)
        plain.append(np.polyfit(*points, 1)[0])
    assert np.std(weighted) < 0.7 * np.std(plain)


def test_bands_hold_the_truth() -> None:
    exact = fit_isoflop(PARAMS, chinchilla(PARAMS, EXAMPLES), FLOPS)
    inside = {"beyond": 0, "minimum": 0}
    for trial, rng in generators(1):
        loss = noisy(chinchilla(PARAMS, EXAMPLES), 0.01, rng)
        law = fit_isoflop(PARAMS, loss, FLOPS, seed=trial)
        low, high = law.band(1e19)
        inside["beyond"] += low <= exact.predict(1e19) <= high
        low, high = law.budgets[0].params_interval
        inside["minimum"] += low <= exact.budgets[0].params <= high
    assert min(inside.values()) >= 90, inside
