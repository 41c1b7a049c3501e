# SPDX-License-Identifier: Apache-2.0
"""Robust least squares with bounds, many problems at once, and the residual bootstrap on top.

A fit starts from a grid of points and is repeated for hundreds of resamples: here all of them take
a step together, each with a damping of its own (Levenberg and Marquardt; Huber's loss by
reweighting).
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from vit_jax.analysis.scaling import bootstrap

NUM_RESAMPLES = 300
# theta [S, P] -> predictions [S, N] of N runs and their derivatives [S, N, P].
Model = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds [P] of the parameters; `loose` takes the place of `low` for the resamples.

    Near a bound such as c >= 0 the resamples would pile up on it, and their percentiles would be
    too narrow.
    """

    low: np.ndarray
    high: np.ndarray
    loose: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """A minimum theta [P], resamples of it, draws [R, P], and the noise of a run (its std)."""

    theta: np.ndarray
    draws: np.ndarray
    noise: float


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

    Args:
        model: what is fitted; it may return NaN, where no step goes.
        target: [N], or [S, N] where each start has its own.
        starts: [S, P].
        low: [P], bounds.
        high: [P].
        delta: of Huber's loss.
        max_steps: of each start.

    Returns:
        theta [S, P] and its loss [S].
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
    *,
    delta: float | None,
    num_resamples: int,
    seed: int,
) -> Fit:
    """Fit from a grid of starts, and again to resampled residuals, from the minimum found.

    Args:
        model: what is fitted.
        target: [N].
        starts: [S, P].
        bounds: of theta.
        delta: of Huber's loss; None: 1.345 times the noise, which costs 5 % of the precision where
            the noise is normal (Huber 1964).
        num_resamples: how many draws.
        seed: of the resamples.
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
    pool = bootstrap.errors(residual, slope[0][:, free])
    targets = value + rng.choice(pool, (num_resamples, len(target)))
    repeated = np.broadcast_to(centre, (num_resamples, len(theta)))
    draws, _ = minimise(model, targets, repeated, bounds.loose, high, delta, 60)
    spare = max(len(target) - int(free.sum()), 1)
    return Fit(theta=theta, draws=draws, noise=float(np.sqrt(np.sum(residual**2) / spare)))


def _noise(
    model: Model, target: np.ndarray, starts: np.ndarray, low: np.ndarray, high: np.ndarray
) -> float:
    """Estimate the noise of a run from the median residual, which outliers leave alone."""
    theta, loss = minimise(model, target, starts, low, high, np.inf, 40)
    residual = target - model(theta[np.argmin(loss)][None])[0][0]
    spare = max(len(target) - int((low < high).sum()), 1)
    # Of normal noise the median size is 1 / 1.4826 of the standard deviation.
    robust = 1.4826 * float(np.median(np.abs(residual))) * np.sqrt(len(target) / spare)
    return max(float(robust), 1e-9)
