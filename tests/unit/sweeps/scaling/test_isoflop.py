# SPDX-License-Identifier: Apache-2.0
"""Parabolas through runs of one compute, and the power law through their minima."""

import json

import numpy as np
import pytest

from tests.unit.sweeps.scaling.coverage import K, chinchilla, isoflops, noisy
from vit_jax.sweeps.scaling import CannotFit, fit_isoflop

PARAMS, EXAMPLES, FLOPS = isoflops(4, 5, 8)
LOSS = noisy(chinchilla(PARAMS, EXAMPLES), 0.003, np.random.default_rng(0))


def test_exact_parabolas_are_recovered() -> None:
    best = 3e6 * np.array([1, 4, 16.0])
    params = best[:, None] * np.array([0.3, 0.8, 1.5, 5])
    loss = np.array([2, 1.5, 1.2])[:, None] * np.exp(0.05 * np.log(params / best[:, None]) ** 2)
    flops = np.repeat([1e16, 1e17, 1e18], 4)
    examples = flops / (50 * params.ravel())
    law = fit_isoflop(params.ravel(), loss.ravel(), flops, examples=examples)
    np.testing.assert_allclose(law.a, np.log(4) / np.log(10), rtol=1e-6)
    np.testing.assert_allclose(law.b, 1 - np.log(4) / np.log(10), rtol=1e-6)
    np.testing.assert_allclose([b.params for b in law.budgets], best, rtol=1e-6)
    np.testing.assert_allclose([b.loss for b in law.budgets], [2, 1.5, 1.2], rtol=1e-9)
    np.testing.assert_allclose([b.curvature for b in law.budgets], 0.1, rtol=1e-6)
    np.testing.assert_allclose(law.budgets[1].predict(params[1]), loss[1], rtol=1e-9)
    np.testing.assert_allclose(law.predict([1e17, 1e19]), 3e6 * np.array([4, 64]), rtol=1e-6)
    np.testing.assert_allclose(law.examples(1e17), 1e17 / (50 * 12e6), rtol=1e-6)
    assert law.describe() == "N(C) = 1.2e+07 (C/1e17)^0.602; D ~ C^0.398"
    assert json.loads(json.dumps(law.to_json()))["budgets"][0]["sizes"] == params[0].tolist()


def test_unit_and_order_mean_nothing() -> None:
    law = fit_isoflop(PARAMS, LOSS, FLOPS, examples=EXAMPLES)
    np.testing.assert_allclose(law.k, K)
    order = np.random.default_rng(0).permutation(len(LOSS))
    # Runs of one budget differ in compute by a rounding error: the budgets are equal, not each bit.
    other = fit_isoflop(PARAMS[order], LOSS[order], FLOPS[order], examples=EXAMPLES[order])
    assert law == other
    scaled = fit_isoflop(PARAMS, LOSS, FLOPS * 1e4)
    np.testing.assert_allclose(scaled.a, law.a, rtol=1e-9)
    np.testing.assert_allclose(scaled.predict(1e21), law.predict(1e17), rtol=1e-9)


def test_budgets_are_told_apart_by_the_tolerance() -> None:
    near = FLOPS * np.random.default_rng(0).uniform(0.97, 1.03, len(FLOPS))
    assert len(fit_isoflop(PARAMS, LOSS, near).budgets) == 4
    with pytest.raises(CannotFit, match=r"of 20 budgets have a minimum.* 1 sizes, and a parabola"):
        fit_isoflop(PARAMS, LOSS, near, tolerance=1e-6)


def _reshape(loss: np.ndarray, budget: int, shape: np.ndarray) -> np.ndarray:
    loss = loss.copy()
    loss[5 * budget : 5 * budget + 5] = shape
    return loss


def test_a_budget_without_a_minimum_is_left_out_and_named() -> None:
    up = _reshape(LOSS, 0, np.array([2, 2.2, 2.3, 2.2, 2.0]))
    law = fit_isoflop(PARAMS, up, FLOPS)
    assert len(law.budgets) == 3
    assert "1e+16 FLOPs: the parabola opens downward" in law.refused[0]
    falling = _reshape(LOSS, 3, np.array([2, 1.6, 1.3, 1.15, 1.1]))
    law = fit_isoflop(PARAMS, falling, FLOPS)
    assert "1e+18 FLOPs: the minimum lies outside the sizes tried; try larger" in law.refused[0]
    rising = _reshape(LOSS, 3, np.array([1.1, 1.15, 1.3, 1.6, 2]))
    assert "try smaller" in fit_isoflop(PARAMS, rising, FLOPS).refused[0]


def test_runs_that_support_no_law_are_refused() -> None:
    with pytest.raises(CannotFit, match=r"0 of 4 budgets have a minimum.*opens downward"):
        fit_isoflop(PARAMS, 1 / LOSS, FLOPS)
    with pytest.raises(CannotFit, match="1 of 1 budgets"):
        fit_isoflop(PARAMS[:5], LOSS[:5], FLOPS[:5])
    with pytest.raises(CannotFit, match="budgets span a factor of 2"):
        fit_isoflop(PARAMS[:10], LOSS[:10], np.repeat([1e16, 2e16], 5))
    three = np.tile([True, False, True, False, True], 4)
    with pytest.raises(CannotFit, match="fit a parabola exactly"):
        fit_isoflop(PARAMS[three], LOSS[three], FLOPS[three])
    with pytest.raises(CannotFit, match="without examples"):
        fit_isoflop(PARAMS, LOSS, FLOPS).examples(1e17)
