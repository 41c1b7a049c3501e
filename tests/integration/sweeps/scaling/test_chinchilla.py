# SPDX-License-Identifier: Apache-2.0
"""L(N, D) = E + A / N^alpha + B / D^beta and the frontier that follows."""

import numpy as np
import pytest
from scipy import optimize

from tests.unit.sweeps.scaling.coverage import CHINCHILLA, chinchilla, generators, grid, hits, noisy
from tests.unit.sweeps.scaling.test_chinchilla import EXAMPLES, FLOPS, LOSS, PARAMS
from vit_jax.sweeps.scaling import fit_chinchilla


@pytest.mark.parametrize("shape,noise", [((3, 4), 0.01), ((5, 6), 0.02)])
def test_intervals_hold_the_truth(shape, noise) -> None:
    params, examples = grid(*shape)
    exact = chinchilla(params, examples)

    def fit(trial: int, rng: np.random.Generator):
        return fit_chinchilla(params, examples, noisy(exact, noise, rng), seed=trial)

    truth = {**dict(zip(("E", "A", "B", "alpha", "beta"), CHINCHILLA, strict=True)), "a": 7 / 15}
    counts = hits(fit, truth, seed=0)
    assert min(counts.values()) >= 90, counts


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
