# SPDX-License-Identifier: Apache-2.0
"""Robust least squares with bounds, many problems at once, and intervals from a residual bootstrap.

All starts and all resamples of a fit take a step together, each with a damping of its own
(Levenberg and Marquardt; Huber's loss by reweighting).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import special

from vit_jax.sweeps.scaling import runs
from vit_jax.sweeps.scaling.runs import At

LEVEL = 0.95
NUM_RESAMPLES = 300
Intervals = dict[str, tuple[float, float]]
# What numpy makes of arrays, and of numbers.
Values = np.ndarray | np.floating
# theta [S, P] -> predictions [S, N] of N runs and their derivatives [S, N, P].
Model = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """What every fitted law has besides its parameters.

    Attributes:
        intervals: of its parameters, by their symbols, at 95 %.
        noise: of one run, the standard deviation of log loss.
        draws: the parameters of the resamples that intervals and bands come from.
        symbols: names of these parameters.
    """

    symbols: ClassVar[tuple[str, ...]] = ()
    intervals: Intervals
    noise: float
    draws: tuple[tuple[float, ...], ...] = dataclasses.field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the fields without the draws, which a file does not need."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "draws"}

    def formula(self, theta: Any, *at: Any) -> Any:
        """Return the law's value for the parameters `theta`."""
        raise NotImplementedError

    @property
    def theta(self) -> list[float]:
        """The fitted parameters, in the order of `symbols`."""
        return [getattr(self, symbol) for symbol in self.symbols]

    def spread(self, *at: At) -> list[np.ndarray]:
        """Return each parameter's draws, shaped to broadcast against `at`: [R, 1, ...]."""
        return [p.reshape(-1, *[1] * np.broadcast(*at).ndim) for p in np.asarray(self.draws).T]

    def predict(self, *at: At) -> Values:
        """Return the law's value at each compute, or pair of what the law is of."""
        return self.formula(self.theta, *map(np.asarray, at))

    def band(self, *at: At) -> tuple[Values, Values]:
        """Return the interval of the law, not of one run, at each of these."""
        return around(self.formula(self.spread(*at), *map(np.asarray, at)), self.predict(*at))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds [P] of the parameters; resamples have `loose` for `low`.

    They would pile up on a bound such as c >= 0, which makes their percentiles too narrow.
    """

    low: np.ndarray
    high: np.ndarray
    loose: np.ndarray


def huber(residuals: np.ndarray, delta: float) -> np.ndarray:
    """Sum Huber's loss over the last axis: quadratic up to `delta`, linear beyond."""
    size = np.abs(residuals)
    small = np.minimum(size, delta)
    return np.sum(small * (size - small / 2), axis=-1)


def minimise(
    model: Model,
    target: np.ndarray,
    starts: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    delta: float,
    max_steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise Huber's loss of model(theta) - target from each start, within bounds.

    `target` is [N], or [S, N] where each start has its own; `starts` are [S, P], each of which
    makes at most `max_steps`; the bounds are [P]. No step goes where the model returns NaN.
    Returns theta [S, P] and its loss [S].
    """
    theta = np.clip(starts, low, high)
    target = np.broadcast_to(target, (len(theta), target.shape[-1]))
    damping = np.full(len(theta), 1e-3)
    with np.errstate(all="ignore"):
        value, slope = model(theta)
        loss = huber(value - target, delta)
    loss = np.where(np.isnan(loss), np.inf, loss)
    live = np.flatnonzero(np.isfinite(loss))
    for _ in range(max_steps):
        if not len(live):
            break
        residual = value[live] - target[live]
        weight = np.sqrt(np.minimum(1, delta / np.maximum(np.abs(residual), 1e-300)))
        jacobian = slope[live] * weight[..., None]
        transposed = jacobian.swapaxes(1, 2)
        gradient = (transposed @ (residual * weight)[..., None])[..., 0]
        hessian = transposed @ jacobian
        # A parameter at its bound that wants to cross it takes no part in the step.
        stuck = ((theta[live] <= low) & (gradient > 0)) | ((theta[live] >= high) & (gradient < 0))
        free = ~stuck
        hessian *= free[:, :, None] & free[:, None, :]
        diagonal = np.einsum("spp->sp", hessian)  # a view
        diagonal += diagonal * damping[live, None] + stuck + 1e-15
        step = np.linalg.solve(hessian, -(gradient * free)[..., None])[..., 0]
        tried = np.clip(theta[live] + step, low, high)
        with np.errstate(all="ignore"):
            new_value, new_slope = model(tried)
            new_loss = huber(new_value - target[live], delta)
        better = new_loss < loss[live]
        gain = np.where(better, loss[live] - new_loss, 0)
        done = np.where(better, gain <= 1e-10 * loss[live], damping[live] > 1e6)
        damping[live] = np.clip(damping[live] * np.where(better, 0.2, 5.0), 1e-9, 1e9)
        at = live[better]
        theta[at], loss[at] = tried[better], new_loss[better]
        value[at], slope[at] = new_value[better], new_slope[better]
        live = live[~done]
    return theta, loss


def fit(
    model: Model,
    target: np.ndarray,
    starts: np.ndarray,
    bounds: Bounds,
    named: Callable[[np.ndarray], dict[str, Any]],
    *,
    derived: Callable[[dict[str, Any]], dict[str, Any]] = lambda law: {},
    exponents: Sequence[str],
    delta: float | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[dict[str, Any], np.ndarray]:
    """Fit from a grid of starts, and again to resampled residuals, from the minimum found.

    Returns the fields of a `Law`, its parameters included, and theta.

    Args:
        model, target, starts: [N] runs are fitted from [S, P].
        bounds: of theta.
        named: theta [P] or [R, P] -> the law's parameters by their symbols.
        derived: these -> others that follow from them.
        exponents: symbols of those that the runs must determine.
        delta: of Huber's loss; None: 1.345 times the noise, which costs 5 % of the precision where
            the noise is normal (Huber 1964).
        num_resamples, seed: of the bootstrap.

    Raises CannotFit: the runs do not determine an exponent.
    """
    low, high = bounds.low, bounds.high
    if delta is None:
        delta = 1.345 * _noise(model, target, starts, low, high)
    coarse, loss = minimise(model, target, starts, low, high, delta, 40)
    best, loss = minimise(model, target, coarse[np.argsort(loss)[:5]], low, high, delta, 400)
    theta = best[np.argmin(loss)]
    centre, _ = minimise(model, target, theta[None], bounds.loose, high, delta, 400)
    value, slope = model(centre)
    residual = target - value[0]
    free = (centre[0] > bounds.loose) & (centre[0] < high)
    rng = np.random.default_rng(seed)
    pool = errors(residual, slope[0][:, free])
    targets = value + rng.choice(pool, (num_resamples, len(target)))
    repeated = np.broadcast_to(centre, (num_resamples, len(theta)))
    draws, _ = minimise(model, targets, repeated, bounds.loose, high, delta, 60)
    spare = max(len(target) - int(free.sum()), 1)

    spread, law = named(draws), named(theta)
    law = {name: float(value) for name, value in (law | derived(law)).items()}
    intervals = named_intervals(spread | derived(spread), law)
    runs.check_exponents(intervals, law, exponents)
    fields = {
        "intervals": intervals,
        "noise": float(np.sqrt(np.sum(residual**2) / spare)),
        "draws": tuple(map(tuple, np.column_stack(list(spread.values())).tolist())),
    }
    return law | fields, theta


def _noise(
    model: Model, target: np.ndarray, starts: np.ndarray, low: np.ndarray, high: np.ndarray
) -> float:
    """Estimate the noise of a run from the median residual, which outliers leave alone."""
    theta, loss = minimise(model, target, starts, low, high, np.inf, 40)
    residual = target - model(theta[np.argmin(loss)][None])[0][0]
    spare = max(len(target) - int((low < high).sum()), 1)
    # The median size of normal noise is 1 / 1.4826 of the standard deviation.
    robust = 1.4826 * float(np.median(np.abs(residual))) * np.sqrt(len(target) / spare)
    return max(float(robust), 1e-9)


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


def around(draws: Any, centre: Values) -> tuple[Values, Values]:
    """Return the interval of positive quantities from their draws [R, ...], with the estimate in.

    Draws, fitted without c >= 0 and the like, may lie below zero, and the estimate beside them.
    """
    low, high = interval(draws)
    return np.maximum(np.minimum(low, centre), 0), np.maximum(high, centre)


def named_intervals(draws: dict[str, np.ndarray], centre: dict[str, float]) -> Intervals:
    """Return the interval of each named quantity from its draws [R]."""
    pairs = {name: around(draws[name], np.float64(centre[name])) for name in draws}
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items()}
