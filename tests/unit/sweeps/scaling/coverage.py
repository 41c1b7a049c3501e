# SPDX-License-Identifier: Apache-2.0
"""Laws of known exponents with noise, fitted a hundred times over."""

from collections.abc import Callable, Iterator

import numpy as np

Grid = tuple[np.ndarray, ...]
TRIALS = 100


def generators(seed: int) -> Iterator[tuple[int, np.random.Generator]]:
    for trial in range(TRIALS):
        yield trial, np.random.default_rng([seed, trial])


def noisy(values: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
    return values * np.exp(std * rng.standard_normal(values.shape))


def hits(fit: Callable[..., object], truth: dict[str, float], seed: int) -> dict[str, int]:
    """Count the trials in which each interval holds the true value."""
    counts = dict.fromkeys(truth, 0)
    for trial, rng in generators(seed):
        law = fit(trial, rng)
        for name, value in truth.items():
            low, high = law.intervals[name]
            counts[name] += low <= value <= high
    return counts


def power_law(compute: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
    return a * (compute / 1e15 + d) ** -b + c


# E, A, B, alpha and beta; k FLOPs for each parameter and example.
CHINCHILLA = (0.5, 0.5 * 1e7**0.4, 0.5 * 1e7**0.35, 0.4, 0.35)
K = 600.0


def chinchilla(params: np.ndarray, examples: np.ndarray) -> np.ndarray:
    E, A, B, alpha, beta = CHINCHILLA
    return E + A / params**alpha + B / examples**beta


def grid(num_params: int, num_examples: int) -> Grid:
    params, examples = np.meshgrid(
        np.geomspace(1e6, 1e8, num_params), np.geomspace(1e6, 3e8, num_examples)
    )
    return params.ravel(), examples.ravel()


def isoflops(num_budgets: int, num_sizes: int, reach: float, shift: float = 1.0) -> Grid:
    """Sizes around the best of each compute, from 1 / reach to reach times it: N, D, C."""
    _, A, B, alpha, beta = CHINCHILLA
    product = np.geomspace(1e16, 1e18, num_budgets)[:, None] / K
    best = (alpha * A / (beta * B)) ** (1 / (alpha + beta)) * product ** (beta / (alpha + beta))
    params = shift * best * np.geomspace(1 / reach, reach, num_sizes)
    examples = product / params
    return params.ravel(), examples.ravel(), (K * params * examples).ravel()


# alpha, a, beta, b, xi, c and eps, with x in 400 and compute in 1e18.
SHAPE = (0.15, 0.6, 0.2, 0.5, 0.08, 0.5, 0.1)


def shape(size: np.ndarray, compute: np.ndarray, floors: bool = True) -> np.ndarray:
    alpha, a, beta, b, xi, c, eps = SHAPE
    xi, eps = floors * xi, floors * eps
    x, t = size / 400, compute / 1e18
    return alpha * x**-a + (beta * x**b + xi) * t**-c + eps


def star(num_sizes: int, num_computes: int) -> Grid:
    size, compute = np.meshgrid(
        np.geomspace(64, 2048, num_sizes), np.geomspace(1e17, 1e20, num_computes)
    )
    return size.ravel(), compute.ravel()
