# SPDX-License-Identifier: Apache-2.0
"""L(N, D) = E + A / N^alpha + B / D^beta and the frontier that follows."""

import json

import numpy as np
import pytest
from scipy import optimize

from tests.analysis.scaling.coverage import CHINCHILLA, K, chinchilla, generators, grid, hits, noisy
from vit_jax.analysis.scaling import CannotFit, fit_chinchilla, held_out

PARAMS, EXAMPLES = grid(4, 5)
FLOPS = K * PARAMS * EXAMPLES
LOSS = noisy(chinchilla(PARAMS, EXAMPLES), 0.01, np.random.default_rng(0))


def test_exact_law_is_recovered() -> None:
    law = fit_chinchilla(PARAMS, EXAMPLES, chinchilla(PARAMS, EXAMPLES), flops=FLOPS)
    np.testing.assert_allclose((law.E, law.A, law.B, law.alpha, law.beta), CHINCHILLA, rtol=1e-5)
    np.testing.assert_allclose((law.a, law.b), (0.35 / 0.75, 0.4 / 0.75), rtol=1e-6)
    np.testing.assert_allclose((law.k, law.k_spread), (K, 1))
    assert law.describe() == ("L(N, D) = 0.5 + 315 / N^0.4 + 141 / D^0.35; N ~ C^0.47, D ~ C^0.53")


@pytest.mark.parametrize("shape,noise", [((3, 4), 0.01), ((5, 6), 0.02)])
def test_intervals_hold_the_truth(shape, noise) -> None:
    params, examples = grid(*shape)
    exact = chinchilla(params, examples)

    def fit(trial: int, rng: np.random.Generator):
        return fit_chinchilla(params, examples, noisy(exact, noise, rng), seed=trial)

    truth = {**dict(zip(("E", "A", "B", "alpha", "beta"), CHINCHILLA, strict=True)), "a": 7 / 15}
    counts = hits(fit, truth, seed=0)
    assert min(counts.values()) >= 90, counts


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


def test_bands_of_the_optimum_hold_the_truth() -> None:
    exact = fit_chinchilla(PARAMS, EXAMPLES, chinchilla(PARAMS, EXAMPLES), flops=FLOPS)
    true = exact.optimum(1e18)
    inside = {"params": 0, "examples": 0, "loss": 0, "law": 0}
    for trial, rng in generators(5):
        loss = noisy(chinchilla(PARAMS, EXAMPLES), 0.01, rng)
        law = fit_chinchilla(PARAMS, EXAMPLES, loss, flops=FLOPS, seed=trial)
        best = law.optimum(1e18)
        for name in ("params", "examples", "loss"):
            low, high = getattr(best, f"{name}_band")
            inside[name] += low <= getattr(true, name) <= high
        low, high = law.band(1e9, 1e9)
        inside["law"] += low <= exact.predict(1e9, 1e9) <= high
    assert min(inside.values()) >= 90, inside


def test_minimum_is_that_of_the_paper() -> None:
    """Section D.2: Huber's loss of 1e-3 of the log of a sum of exponentials, by L-BFGS."""

    def objective(theta: np.ndarray) -> float:
        e, a, b, alpha, beta = theta
        terms = [a - alpha * np.log(PARAMS / 1e7), b - beta * np.log(EXAMPLES / 1e7)]
        log = np.logaddexp(np.logaddexp(terms[0], terms[1]), e)
        return float(np.sum(_huber(log - np.log(LOSS))))

    found = min(
        (
            optimize.minimize(
                objective, (e, -0.7, -0.7, alpha, beta), method="L-BFGS-B", options={"ftol": 1e-15}
            )
            for e in (-1.0, 0.0)
            for alpha in (0.2, 0.5)
            for beta in (0.2, 0.5)
        ),
        key=lambda result: result.fun,
    )
    law = fit_chinchilla(PARAMS, EXAMPLES, LOSS, delta=1e-3)
    ours = np.sum(_huber(np.log(law.predict(PARAMS, EXAMPLES) / LOSS)))
    assert ours <= found.fun * (1 + 1e-6)
    np.testing.assert_allclose((law.alpha, law.beta), found.x[3:], rtol=0.02)


def _huber(residual: np.ndarray, delta: float = 1e-3) -> np.ndarray:
    size = np.abs(residual)
    return np.where(size < delta, size**2 / 2, delta * (size - delta / 2))


def test_unit_and_order_mean_nothing() -> None:
    law = fit_chinchilla(PARAMS, EXAMPLES, LOSS, flops=FLOPS)
    order = np.random.default_rng(0).permutation(len(LOSS))
    assert law == fit_chinchilla(PARAMS[order], EXAMPLES[order], LOSS[order], flops=FLOPS[order])
    scaled = fit_chinchilla(PARAMS * 1e3, EXAMPLES / 7, LOSS, flops=FLOPS)
    np.testing.assert_allclose((scaled.alpha, scaled.beta), (law.alpha, law.beta), rtol=1e-6)
    np.testing.assert_allclose(scaled.optimum(1e19).params, law.optimum(1e19).params * 1e3)


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
