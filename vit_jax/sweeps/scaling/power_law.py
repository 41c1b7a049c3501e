# SPDX-License-Identifier: Apache-2.0
"""The law of error against compute: Zhai et al. 2021, arXiv:2106.04560, section 2."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from vit_jax.sweeps.scaling import fitting, runs
from vit_jax.sweeps.scaling.fitting import NUM_RESAMPLES, Law
from vit_jax.sweeps.scaling.runs import EXPONENTS, CannotFit, Numbers

MIN_RANGE = 10.0
# Different computes from which c and d are fitted; with fewer they are 0.
MIN_FOR_C, MIN_FOR_D = 5, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerLaw(Law):
    """E(C) = a ((C + d) / unit)^-b + c.

    Attributes:
        c: the error that no compute removes.
        d: the compute below which more of it gains little.
        unit: of compute, a power of ten near the middle of the runs.
        fixed: which of c and d were held at 0, for want of runs.
        span: the smallest and the largest compute of the runs.
    """

    symbols: ClassVar[tuple[str, ...]] = ("a", "b", "c", "d")
    a: float
    b: float
    c: float
    d: float
    unit: float
    fixed: tuple[str, ...]
    span: tuple[float, float]

    def formula(self, theta: Any, compute: Any) -> Any:
        """Return the error at each compute."""
        a, b, c, d = theta
        # Draws may have d < 0, which means nothing below that compute.
        return a * (np.maximum(compute + d, 1e-3 * compute) / self.unit) ** -b + c

    def describe(self) -> str:
        """Write the law in one line."""
        shifted = f"(C + {self.d:.2g})" if self.d > 1e-3 * self.span[0] else "C"
        inner = f"({shifted}/{runs.ten(self.unit)})"
        rest = f" + {self.c:.3g}" if self.c else ""
        return f"E(C) = {self.a:.3g} {inner}^-{self.b:.3g}{rest}"


def fit_power_law(
    compute: Numbers,
    error: Numbers,
    *,
    saturation: bool | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> PowerLaw:
    """Fit E(C) = a (C + d)^-b + c to runs; those on the frontier make the law of the best runs.

    Residuals are of log error, under Huber's loss. Fewer than 5 different computes leave c, fewer
    than 8 leave d at 0. So does `saturation=None` where 8 or more do not determine b beside d.

    Args:
        compute, error: of each run, in any unit; a loss does, too.
        saturation: whether to fit d; None where the runs determine it.
        num_resamples, seed: of the bootstrap.

    Raises CannotFit: the runs do not support the law.
    """
    compute, error = runs.columns(compute=compute, error=error)
    runs.check_range("a power law", "computes", compute, 4, MIN_RANGE)
    different = len(np.unique(compute))
    _check_falls(compute, error)
    if saturation and different < MIN_FOR_D:
        needed = f"d needs at least {MIN_FOR_D}; leave saturation out"
        raise CannotFit(f"{different} different computes: {needed}")
    if different >= MIN_FOR_D and saturation is not False:
        try:
            return _fit(compute, error, ("c", "d"), num_resamples, seed)
        except CannotFit:
            if saturation:
                raise
    return _fit(compute, error, ("c",) if different >= MIN_FOR_C else (), num_resamples, seed)


def _check_falls(compute: np.ndarray, error: np.ndarray) -> None:
    """Refuse errors that do not fall, or that rise again among the larger half of the runs."""
    log_compute, log_error = np.log(compute)[:, None], np.log(error)
    runs.falls("error", log_compute, log_error, ["compute"])
    half = slice(len(error) // 2, None)
    if len(error) >= 8 and np.ptp(compute[half]) > 0:
        try:
            runs.falls("error", log_compute[half], -log_error[half], ["compute"])
        except CannotFit:  # it does not rise
            return
        rises = f"error rises again from a compute of {compute[half][0]:.3g} on: larger runs are"
        raise CannotFit(f"{rises} worse; train them longer or fit the frontier alone")


def _fit(
    compute: np.ndarray, error: np.ndarray, fitted: tuple[str, ...], num_resamples: int, seed: int
) -> PowerLaw:
    unit, middle = runs.unit_of(compute), float(np.exp(np.mean(np.log(compute))))
    x = compute / middle
    lowest = error.min()

    def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_a, b, c, d = theta.T[:, :, None]
        power = np.exp(log_a - b * np.log(x + d))
        total = power + c
        slopes = [power, -power * np.log(x + d), np.ones_like(power), -b * power / (x + d)]
        return np.log(total), np.stack(slopes, -1) / total[..., None]

    with_c, with_d = "c" in fitted, "d" in fitted
    starts = [
        (np.mean(np.log(error - c) + b * np.log(x + d)), b, c, d)
        for b in (0.1, 0.3, 0.6, 1.0, 2.0)
        for c in (np.array([0, 0.4, 0.8, 0.95]) * lowest if with_c else [0.0])
        for d in ([0.0, x[0], 10 * x[0]] if with_d else [0.0])
    ]
    bounds = fitting.Bounds(
        low=np.array([-np.inf, EXPONENTS[0], 0, 0]),
        high=np.array([np.inf, EXPONENTS[1], with_c * lowest, with_d * x[-1]]),
        loose=np.array([-np.inf, EXPONENTS[0], -with_c * lowest, -0.5 * with_d * x[0]]),
    )

    def named(theta: np.ndarray) -> dict[str, Any]:
        log_a, b, c, d = theta.T
        a = np.exp(log_a + b * np.log(middle / unit))
        return {"a": a, "b": b, "c": c, "d": d * middle}

    settings: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed, "exponents": ["b"]}
    law, theta = fitting.fit(model, np.log(error), np.array(starts), bounds, named, **settings)
    if with_d and theta[3] >= x[-1]:
        raise CannotFit("the runs do not determine d: leave saturation out, or add larger runs")
    fixed = tuple(name for name in ("c", "d") if name not in fitted)
    return PowerLaw(**law, unit=unit, fixed=fixed, span=(float(compute[0]), float(compute[-1])))
