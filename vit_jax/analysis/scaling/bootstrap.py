# SPDX-License-Identifier: Apache-2.0
"""Intervals from the draws of a bootstrap."""

import dataclasses
from typing import Any

import numpy as np
from scipy import special

LEVEL = 0.95
Intervals = dict[str, tuple[float, float]]
# What numpy makes of arrays, and of numbers.
Values = np.ndarray | np.floating


def errors(residual: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """Turn a fit's residuals [N] into the errors to draw from, as large as those of the runs.

    A fit bends towards its runs: residuals are smaller than the errors, by the run's leverage. And
    few runs leave the size of the errors uncertain: the pool is wider by Student's t over the
    normal quantile, as are the intervals of Hesterberg 2015 (arXiv:1411.5279), section 4.
    """
    leverage = np.minimum(np.sum(np.linalg.qr(jacobian)[0] ** 2, axis=1), 0.95)
    pool = residual / np.sqrt(1 - leverage)
    pool -= pool.mean()
    return pool * t_factor(len(residual) - jacobian.shape[1])


def t_factor(freedom: int) -> float:
    """Return how much wider Student's t is than the normal distribution, at LEVEL."""
    tail = (1 + LEVEL) / 2
    return float(special.stdtrit(max(freedom, 1), tail) / special.ndtri(tail))


def interval(draws: np.ndarray) -> tuple[Values, Values]:
    """Return the percentiles of LEVEL over the first axis of draws [R, ...]."""
    tails = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    low, high = np.percentile(draws, tails, axis=0, method="weibull")
    return low, high


def per_draw(draws: tuple[tuple[float, ...], ...], like: Any) -> list[np.ndarray]:
    """Return each parameter's draws, shaped to broadcast against `like`: [R, 1, ...]."""
    return [p.reshape(-1, *[1] * np.ndim(like)) for p in np.asarray(draws).T]


def around(draws: Any, centre: Values) -> tuple[Values, Values]:
    """Return the interval of positive quantities from their draws [R, ...], with the estimate in.

    The draws are fitted without c >= 0 and the like: they may lie below zero, and the estimate
    beside them.
    """
    low, high = interval(draws)
    return np.maximum(np.minimum(low, centre), 0), np.maximum(high, centre)


def named_intervals(draws: dict[str, np.ndarray], centre: dict[str, float]) -> Intervals:
    """Return the interval of each named quantity from its draws [R]."""
    pairs = {name: around(draws[name], np.float64(centre[name])) for name in draws}
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items()}


def without_draws(law: Any) -> dict[str, Any]:
    """Return a law's fields but the draws, which a file does not need."""
    return {key: value for key, value in dataclasses.asdict(law).items() if key != "draws"}
