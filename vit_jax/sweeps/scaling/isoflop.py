# SPDX-License-Identifier: Apache-2.0
"""The best size for each compute from runs of equal compute: Hoffmann et al. 2022, section 3.2."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from vit_jax.sweeps.scaling import fitting, runs
from vit_jax.sweeps.scaling.fitting import NUM_RESAMPLES, Law, Values
from vit_jax.sweeps.scaling.runs import At, CannotFit, Numbers

TOLERANCE = 0.1
MIN_RANGE = 4.0  # the least factor between budgets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Runs of one compute: log loss = log(loss) + curvature / 2 (log N - log(params))^2.

    `flops` is the geometric mean of the runs, whose parameters and losses are `sizes` and `losses`;
    `params` and `loss` are those of the minimum, with the interval at 95 %.
    """

    flops: float
    params: float
    loss: float
    curvature: float
    params_interval: tuple[float, float]
    sizes: tuple[float, ...]
    losses: tuple[float, ...]

    def predict(self, params: At) -> Values:
        """Return the parabola at each number of parameters."""
        away = np.log(np.asarray(params) / self.params)
        return self.loss * np.exp(self.curvature / 2 * away**2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IsoFlop(Law):
    """N(C) = N0 (C / unit)^a and D(C) = C / (k N(C)), proportional to C^b.

    Attributes:
        b: 1 - a.
        unit: of compute, a power of ten near the middle of the budgets.
        k: FLOPs for each parameter and example; None where the examples were not given.
        budgets: with their minima.
        refused: of the budgets left out, why.
    """

    symbols: ClassVar[tuple[str, ...]] = ("N0", "a")
    a: float
    b: float
    N0: float
    unit: float
    k: float | None
    budgets: tuple[Budget, ...]
    refused: tuple[str, ...]

    def formula(self, theta: Any, compute: Any) -> Any:
        """Return the best number of parameters for each compute."""
        N0, a = theta
        return N0 * (compute / self.unit) ** a

    def examples(self, compute: At) -> Values:
        """Return the number of examples that each compute pays for at the best size.

        Raises CannotFit: the law was fitted without the examples of each run.
        """
        if self.k is None:
            raise CannotFit("fitted without examples: give fit_isoflop those of each run")
        return np.asarray(compute) / (self.k * self.predict(compute))

    def describe(self) -> str:
        """Write the law in one line."""
        return f"N(C) = {self.N0:.3g} (C/{runs.ten(self.unit)})^{self.a:.3g}; D ~ C^{self.b:.3g}"


def fit_isoflop(
    params: Numbers,
    loss: Numbers,
    flops: Numbers,
    *,
    examples: Numbers | None = None,
    tolerance: float = TOLERANCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> IsoFlop:
    """Fit a parabola in log N to the runs of each compute, and a power law through the minima.

    A parabola that opens downward, or whose minimum lies outside the sizes tried, is left out and
    named in `refused`. Differs from paper: the parabola is of log loss.

    Args:
        params, loss, flops: N, the loss and C of each run.
        examples: D of each run, from which k = C / (N D) is estimated.
        tolerance: computes that differ by less, relatively, are one budget.

    Raises CannotFit: fewer than two budgets have a minimum, or they are too near each other.
    """
    given = {} if examples is None else {"examples": examples}
    flops, params, loss, *rest = runs.columns(flops=flops, params=params, loss=loss, **given)
    parabolas, refused = [], []
    for group in _groups(flops, tolerance):
        parabola = _Parabola(flops[group], params[group], loss[group])
        if reason := parabola.refusal():
            refused.append(f"{parabola.flops:.3g} FLOPs: {reason}")
        else:
            parabolas.append(parabola)
    _check(parabolas, refused)
    spare = sum(parabola.spare for parabola in parabolas)
    pool = np.concatenate([parabola.errors() for parabola in parabolas])
    pool = (pool - pool.mean()) * fitting.t_factor(spare)
    rng = np.random.default_rng(seed)
    minima = np.column_stack([p.resampled_minima(pool, num_resamples, rng) for p in parabolas])
    centre = np.array([p.minimum for p in parabolas])

    budgets = np.array([parabola.flops for parabola in parabolas])
    unit = runs.unit_of(budgets)
    # A budget with a minimum that varies between resamples counts less.
    spread = np.subtract(*np.percentile(minima, [84, 16], axis=0))
    weight = 1 / np.maximum(spread, 1e-9 + 0.1 * np.median(spread))
    design = np.column_stack([np.ones(len(budgets)), np.log(budgets / unit)])
    line = np.linalg.pinv(design * weight[:, None]) * weight
    log_n0, a = line @ centre
    log_draws, a_draws = line @ minima.T
    law = {"a": float(a), "b": float(1 - a), "N0": float(np.exp(log_n0))}
    draws = {"a": a_draws, "b": 1 - a_draws, "N0": np.exp(log_draws)}
    intervals = np.exp(fitting.interval(minima)).T.tolist()
    squares = sum(float(np.sum(parabola.residuals**2)) for parabola in parabolas)
    return IsoFlop(
        **law,
        unit=unit,
        k=float(np.exp(np.mean(np.log(flops / (params * rest[0]))))) if rest else None,
        intervals=fitting.named_intervals(draws, law),
        noise=float(np.sqrt(squares / spare)),
        budgets=tuple(p.budget(tuple(each)) for p, each in zip(parabolas, intervals, strict=True)),
        refused=tuple(refused),
        draws=tuple(zip(draws["N0"].tolist(), a_draws.tolist(), strict=True)),
    )


def _groups(flops: np.ndarray, tolerance: float) -> list[np.ndarray]:
    """Split runs, sorted by compute, where one is above the first of its group by `tolerance`."""
    starts = [0]
    for i, cost in enumerate(flops):
        if cost > flops[starts[-1]] * (1 + tolerance):
            starts.append(i)
    return np.split(np.arange(len(flops)), starts[1:])


class _Parabola:
    """log loss = p0 + p1 z + p2 z^2 of one budget, z = log N - middle."""

    def __init__(self, flops: np.ndarray, params: np.ndarray, loss: np.ndarray) -> None:
        self.flops = float(np.exp(np.mean(np.log(flops))))
        self.params, self.loss = params, loss
        self.middle = float(np.mean(np.log(params)))
        z = np.log(params) - self.middle
        self.design = np.column_stack([np.ones_like(z), z, z**2])
        self.coefficients = np.linalg.lstsq(self.design, np.log(loss), rcond=None)[0]
        self.residuals = np.log(loss) - self.design @ self.coefficients
        self.spare = len(params) - 3
        self.reach = float(np.ptp(np.log(params)))
        self.minimum = float(self.minima(self.coefficients[None])[0])

    def refusal(self) -> str:
        """Describe why the budget has no minimum; "" if it has one."""
        different = len(np.unique(self.params))
        if different < 3:
            return f"{different} sizes, and a parabola needs three"
        if self.coefficients[2] <= 0:
            return "the parabola opens downward; try more sizes, further apart"
        if not np.log(self.params.min()) <= self.minimum <= np.log(self.params.max()):
            side = "larger" if self.minimum > self.middle else "smaller"
            return f"the minimum lies outside the sizes tried; try {side} ones"
        return ""

    def minima(self, coefficients: np.ndarray) -> np.ndarray:
        """Return log N at the minimum of each parabola [R, 3], at most `reach` from the middle.

        One that opens downward is least at that distance, on the side where it is lower.
        """
        slope, half = coefficients[:, 1], coefficients[:, 2]
        inside = -slope / (2 * np.where(half > 0, half, 1))
        best = np.where(half > 0, inside, -np.sign(slope) * self.reach)
        return self.middle + np.clip(best, -self.reach, self.reach)

    def errors(self) -> np.ndarray:
        """Return residuals as large as the errors; without those of runs that fix the parabola."""
        leverage = np.sum(np.linalg.qr(self.design)[0] ** 2, axis=1)
        keep = leverage < 0.99
        return self.residuals[keep] / np.sqrt(1 - leverage[keep])

    def resampled_minima(
        self, pool: np.ndarray, count: int, rng: np.random.Generator
    ) -> np.ndarray:
        noise = rng.choice(pool, (count, len(self.params)))
        return self.minima(self.coefficients + noise @ np.linalg.pinv(self.design).T)

    def budget(self, interval: tuple[float, float]) -> Budget:
        z = self.minimum - self.middle
        return Budget(
            flops=self.flops,
            params=float(np.exp(self.minimum)),
            loss=float(np.exp(self.coefficients @ np.array([1.0, z, z**2]))),
            curvature=float(2 * self.coefficients[2]),
            params_interval=interval,
            sizes=tuple(self.params.tolist()),
            losses=tuple(self.loss.tolist()),
        )


def _check(parabolas: list[_Parabola], refused: list[str]) -> None:
    if len(parabolas) < 2:
        count = f"{len(parabolas)} of {len(parabolas) + len(refused)} budgets have a minimum"
        raise CannotFit("; ".join([f"{count}, and two are needed", *refused]))
    factor = max(p.flops for p in parabolas) / min(p.flops for p in parabolas)
    if factor < MIN_RANGE:
        raise CannotFit(f"budgets span a factor of {factor:.3g}: at least {MIN_RANGE:g} needed")
    if sum(parabola.spare for parabola in parabolas) < 2:
        raise CannotFit("three runs a budget fit a parabola exactly, whatever the noise: add sizes")
