# SPDX-License-Identifier: Apache-2.0
"""L(N, D) = E + A / N^alpha + B / D^beta and the frontier that follows."""

import json

import numpy as np
import pytest

from tests.unit.sweeps.scaling.coverage import CHINCHILLA, K, chinchilla, grid, noisy
from vit_jax.sweeps.scaling import CannotFit, fit_chinchilla, held_out

PARAMS, EXAMPLES = grid(4, 5)
FLOPS = K * PARAMS * EXAMPLES
LOSS = noisy(chinchilla(PARAMS, EXAMPLES), 0.01, np.random.default_rng(0))


def test_exact_law_is_recovered() -> None:
    law = fit_chinchilla(PARAMS, EXAMPLES, chinchilla(PARAMS, EXAMPLES), flops=FLOPS)
    np.testing.assert_allclose((law.E, law.A, law.B, law.alpha, law.beta), CHINCHILLA, rtol=1e-5)
    np.testing.assert_allclose((law.a, law.b), (0.35 / 0.75, 0.4 / 0.75), rtol=1e-6)
    np.testing.assert_allclose((law.k, law.k_spread), (K, 1))
    assert law.describe() == ("L(N, D) = 0.5 + 315 / N^0.4 + 141 / D^0.35; N ~ C^0.47, D ~ C^0.53")


def test_optimum_is_the_least_loss_for_its_compute() -> None:
    law = fit_chinchilla(PARAMS, EXAMPLES, LOSS, flops=FLOPS)
    for compute in (1e16, 1e18):
        best = law.optimum(compute)
        np.testing.assert_allclose(K * best.params * best.examples, compute)
        sizes = np.geomspace(1e5, 1e10, 20001)
        losses = law.predict(sizes, compute / K / sizes)
        np.testing.assert_allclose(best.params, sizes[np.argmin(losses)], rtol=1e-3)
        np.testing.assert_allclose(best.loss, losses.min(), rtol=1e-8)
    two = law.optimum([1e16, 1e18])
    np.testing.assert_allclose(np.log(two.params[1] / two.params[0]) / np.log(100), law.a)


def test_fitted_without_flops_there_is_no_optimum() -> None:
    law = fit_chinchilla(PARAMS, EXAMPLES, LOSS)
    assert json.loads(json.dumps(law.to_json()))["k"] is None
    with pytest.raises(CannotFit, match="without FLOPs: give fit_chinchilla"):
        law.optimum(1e18)


def test_larger_runs_are_foretold() -> None:
    result = held_out(fit_chinchilla, (PARAMS, EXAMPLES), LOSS, FLOPS, share=0.2)
    assert min(result.compute) > np.sort(FLOPS)[-5]
    assert abs(result.worst) < 0.05
    exact = chinchilla(PARAMS, EXAMPLES)[np.isin(FLOPS, result.compute)]
    assert (np.array(result.low) <= exact).all()
    assert (exact <= np.array(result.high)).all()


TIED = np.geomspace(1e6, 1e8, 10)


@pytest.mark.parametrize(
    "params,examples,loss,message",
    [
        (PARAMS[:7], EXAMPLES[:7], LOSS[:7], "7 runs: .* needs 8"),
        (PARAMS * 0 + 1e7, EXAMPLES, LOSS, "1 different numbers of parameters"),
        (PARAMS, EXAMPLES * 0 + 1e7, LOSS, "1 different numbers of examples"),
        (PARAMS**0.2 * 1e6, EXAMPLES, LOSS, "parameters span a factor of 2.51"),
        (TIED, 20 * TIED, chinchilla(TIED, 20 * TIED), "grow together"),
        (PARAMS, EXAMPLES, 3 * EXAMPLES**-0.1, "with parameters"),
        (PARAMS, EXAMPLES, PARAMS**0.1 * EXAMPLES**-0.1, "loss rises with parameters"),
        (PARAMS, EXAMPLES, 3 * PARAMS**-0.1, "with examples"),
        (PARAMS, EXAMPLES, LOSS * -1, "loss of run 0 is -"),
    ],
)
def test_runs_that_support_no_law_are_refused(params, examples, loss, message) -> None:
    jitter = np.exp(1e-3 * np.random.default_rng(0).standard_normal(len(loss)))
    with pytest.raises(CannotFit, match=message):
        fit_chinchilla(params, examples, loss * jitter)


def test_an_exponent_left_open_is_named() -> None:
    # Parameters help up to the second size and no further: alpha is as steep as you like.
    loss = chinchilla(np.minimum(PARAMS, 4e6), EXAMPLES) + 0.5 * (PARAMS < 2e6)
    loss = noisy(loss, 0.002, np.random.default_rng(1))
    with pytest.raises(CannotFit, match="do not determine alpha"):
        fit_chinchilla(PARAMS, EXAMPLES, loss)
