# SPDX-License-Identifier: Apache-2.0
"""The best width, depth or MLP for a compute: Alabdulmohsin et al. 2023, arXiv:2305.13035."""

import dataclasses
import itertools
from typing import Any

import numpy as np

from vit_jax.analysis.scaling import fitting, runs
from vit_jax.analysis.scaling.fitting import NUM_RESAMPLES, Law, Values
from vit_jax.analysis.scaling.runs import At, CannotFit, Numbers

MIN_RUNS = 12
MIN_SIZES, MIN_COMPUTES = 4, 3
# Sizes, and computes, must differ by this factor at least.
MIN_RANGE = 4.0


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

    alpha: float
    a: float
    beta: float
    b: float
    xi: float
    c: float
    eps: float
    s: float
    unit: float

    def _theta(self) -> tuple[float, ...]:
        return self.alpha, self.a, self.beta, self.b, self.xi, self.c, self.eps

    def predict(self, size: At, compute: At) -> Values:
        """Return the error of each pair of size and compute."""
        return _error(self._theta(), size, np.asarray(compute) / self.unit)

    def band(self, size: At, compute: At) -> tuple[Values, Values]:
        """Return the interval of the law at each pair."""
        draws = _error(self.spread(compute), size, np.asarray(compute) / self.unit)
        return fitting.around(draws, self.predict(size, compute))

    def optimum(self, compute: At) -> Values:
        """Return the best size for each compute."""
        return _optimum(self._theta(), np.asarray(compute) / self.unit)

    def describe(self) -> str:
        """Write the optimum in one line."""
        return f"x(C) = {float(self.optimum(self.unit)):.3g} (C/{runs.ten(self.unit)})^{self.s:.3g}"


def _error(theta: Any, size: Any, compute: Any) -> Any:
    alpha, a, beta, b, xi, c, eps = theta
    size = np.asarray(size)
    return alpha * size**-a + (beta * size**b + xi) * compute**-c + eps


def _optimum(theta: Any, compute: Any) -> Any:
    alpha, a, beta, b, _, c, _ = theta
    return (alpha * a / (beta * b) * compute**c) ** (1 / (a + b))


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

    Args:
        size, compute, error: x (width, depth or MLP width), compute in any unit, error of each run.
        num_resamples, seed: of the bootstrap.

    Raises CannotFit: the runs do not support the law.
    """
    compute, size, error = runs.columns(compute=compute, size=size, error=error)
    _check(size, compute, error)
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
    for a, b, c, part, xi in itertools.product(
        (0.3, 1.0), (0.3, 1.0), (0.2, 0.6), (0.0, 0.5, 0.8), (0.0, 0.4)
    ):
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
        return {
            "alpha": np.exp(log_alpha + a * np.log(middle[0])),
            "a": a,
            "beta": np.exp(log_beta - b * np.log(middle[0])) * scale,
            "b": b,
            "xi": xi * scale,
            "c": c,
            "eps": eps,
        }

    fields, _ = fitting.fit(
        model,
        np.log(error),
        np.array(starts),
        bounds,
        named,
        derived=lambda law: {"s": law["c"] / (law["a"] + law["b"])},
        exponents=["a", "b", "c"],
        num_resamples=num_resamples,
        seed=seed,
    )
    law = ShapeLaw(**fields, unit=unit)
    best = np.asarray(law.optimum(np.unique(compute)))
    if (best < size.min()).all() or (best > size.max()).all():
        side = "smaller" if best[0] < size.min() else "larger"
        raise CannotFit(
            f"the best size lies outside those tried at every compute, near {best[-1]:.3g}: "
            f"try {side} ones"
        )
    return law


def _check(size: np.ndarray, compute: np.ndarray, error: np.ndarray) -> None:
    """Raise CannotFit for runs that do not determine the seven parameters."""
    runs.check_count("f(x, C)", 7, len(size), MIN_RUNS)
    runs.check_range("f(x, C)", "sizes", size, MIN_SIZES, MIN_RANGE)
    runs.check_range("f(x, C)", "computes", compute, MIN_COMPUTES, MIN_RANGE)
    runs.falls("error", np.log(compute)[:, None], np.log(error), ["compute"])
