# SPDX-License-Identifier: Apache-2.0
"""The best width, depth or MLP for a compute: Alabdulmohsin et al. 2023, arXiv:2305.13035."""

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np

from vit_jax.sweeps.scaling import fitting, runs
from vit_jax.sweeps.scaling.fitting import NUM_RESAMPLES, Law, Values
from vit_jax.sweeps.scaling.runs import At, CannotFit, Numbers

MIN_RUNS, MIN_SIZES, MIN_COMPUTES = 12, 4, 3
MIN_RANGE = 4.0  # the least factor between sizes, and between computes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeLaw(Law):
    """f(x, C) = alpha x^-a + (beta x^b + xi) (C / unit)^-c + eps, x one dimension of the shape.

    A larger x leaves a smaller error once trained (alpha), and takes more compute to train (beta).
    The best is x(C) = (alpha a / (beta b) (C / unit)^c)^(1 / (a + b)), proportional to C^s.

    Attributes:
        xi: error that compute removes whatever x is.
        eps: error that neither removes.
        s: c / (a + b).
        unit: of compute, a power of ten near the middle of the runs.
    """

    symbols: ClassVar[tuple[str, ...]] = ("alpha", "a", "beta", "b", "xi", "c", "eps")
    alpha: float
    a: float
    beta: float
    b: float
    xi: float
    c: float
    eps: float
    s: float
    unit: float

    def formula(self, theta: Any, size: Any, compute: Any) -> Any:
        """Return the error of each pair of size and compute."""
        alpha, a, beta, b, xi, c, eps = theta
        return alpha * size**-a + (beta * size**b + xi) * (compute / self.unit) ** -c + eps

    def optimum(self, compute: At) -> Values:
        """Return the best size for each compute."""
        base = self.alpha * self.a / (self.beta * self.b)
        power = (np.asarray(compute) / self.unit) ** self.c
        return (base * power) ** (1 / (self.a + self.b))

    def describe(self) -> str:
        """Write the optimum in one line."""
        return f"x(C) = {float(self.optimum(self.unit)):.3g} (C/{runs.ten(self.unit)})^{self.s:.3g}"


def fit_shape(
    size: Numbers,
    compute: Numbers,
    error: Numbers,
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> ShapeLaw:
    """Fit f(x, C) to runs that differ in one dimension of the shape and in compute.

    The other dimensions stay at the centre of a star-shaped sweep, large enough not to hold the
    error up. Differs from paper: each dimension has its own c, where the paper shares one.

    `size` is x (width, depth or MLP width); `compute` has any unit; the others are the bootstrap's.

    Raises CannotFit: the runs do not support the law.
    """
    compute, size, error = runs.columns(compute=compute, size=size, error=error)
    runs.check_count("f(x, C)", 7, len(size), MIN_RUNS)
    runs.check_range("f(x, C)", "sizes", size, MIN_SIZES, MIN_RANGE)
    runs.check_range("f(x, C)", "computes", compute, MIN_COMPUTES, MIN_RANGE)
    runs.falls("error", np.log(compute)[:, None], np.log(error), ["compute"])
    unit = runs.unit_of(compute)
    middle = np.exp(np.mean(np.log([size, compute]), axis=1))
    log_x, log_t = np.log(size / middle[0]), np.log(compute / middle[1])
    lowest = error.min()

    def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_alpha, a, log_beta, b, xi, c, eps = theta.T[:, :, None]
        left = np.exp(log_alpha - a * log_x)
        trained = np.exp(-c * log_t)
        untrained = np.exp(log_beta + b * log_x) * trained
        common = xi * trained
        total = left + untrained + common + eps
        slopes = [left, -left * log_x, untrained, untrained * log_x, trained]
        slopes += [-(untrained + common) * log_t, np.ones_like(total)]
        return np.log(total), np.stack(slopes, -1) / total[..., None]

    starts = []
    grid = (0.3, 1.0), (0.3, 1.0), (0.2, 0.6), (0.0, 0.5, 0.8), (0.0, 0.4)
    for a, b, c, part, xi in itertools.product(*grid):
        rest = error.mean() - part * lowest
        log = np.log(rest * (1 - xi) / 2)
        starts.append((log, a, log, b, xi * rest, c, part * lowest))
    least, most = runs.EXPONENTS
    inf = np.inf
    bounds = fitting.Bounds(
        low=np.array([-inf, least, -inf, least, 0, least, 0]),
        high=np.array([inf, most, inf, most, inf, most, lowest]),
        loose=np.array([-inf, least, -inf, least, -2 * error.max(), least, -lowest]),
    )

    def named(theta: np.ndarray) -> dict[str, Any]:
        log_alpha, a, log_beta, b, xi, c, eps = theta.T
        scale = np.exp(c * np.log(middle[1] / unit))
        alpha = np.exp(log_alpha + a * np.log(middle[0]))
        beta = np.exp(log_beta - b * np.log(middle[0])) * scale
        return dict(zip(ShapeLaw.symbols, (alpha, a, beta, b, xi * scale, c, eps), strict=True))

    def exponent(law: dict[str, Any]) -> dict[str, Any]:
        return {"s": law["c"] / (law["a"] + law["b"])}

    settings: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed}
    settings |= {"exponents": ["a", "b", "c"], "derived": exponent}
    fields, _ = fitting.fit(model, np.log(error), np.array(starts), bounds, named, **settings)
    law = ShapeLaw(**fields, unit=unit)
    best = np.asarray(law.optimum(np.unique(compute)))
    if (best < size.min()).all() or (best > size.max()).all():
        side = "smaller" if best[0] < size.min() else "larger"
        where = f"outside those tried at every compute, near {best[-1]:.3g}"
        raise CannotFit(f"the best size lies {where}: try {side} ones")
    return law
