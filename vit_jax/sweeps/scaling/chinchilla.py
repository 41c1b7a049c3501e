# SPDX-License-Identifier: Apache-2.0
"""Loss against parameters and examples: Hoffmann et al. 2022, arXiv:2203.15556, section 3.3."""

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np

from vit_jax.sweeps.scaling import fitting, runs
from vit_jax.sweeps.scaling.fitting import NUM_RESAMPLES, Law, Values
from vit_jax.sweeps.scaling.runs import At, CannotFit, Numbers

MIN_RUNS, MIN_DIFFERENT = 8, 3
MIN_RANGE = 4.0  # the least factor between numbers of parameters, and of examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chinchilla(Law):
    """L(N, D) = E + A / N^alpha + B / D^beta, N parameters trained on D examples.

    A run costs C = k N D. The least loss for C lies at N proportional to C^a and D to C^b.

    Attributes:
        E: the loss that neither parameters nor examples remove.
        a, b: beta / (alpha + beta) and alpha / (alpha + beta).
        k: FLOPs for each parameter and example, the geometric mean of the runs; None where their
            FLOPs were not given.
        k_spread: the largest over the smallest C / (N D) of the runs; far from 1, C = k N D is
            rough, as where convolutions or attention cost more for each parameter.
    """

    symbols: ClassVar[tuple[str, ...]] = ("E", "A", "B", "alpha", "beta")
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    a: float
    b: float
    k: float | None
    k_spread: float | None

    def formula(self, theta: Any, params: Any, examples: Any) -> Any:
        """Return the loss of each pair of parameters and examples."""
        E, A, B, alpha, beta = theta
        return E + A * params**-alpha + B * examples**-beta

    def optimum(self, compute: At) -> "Optimum":
        """Return what to train with each compute, in FLOPs: the compute-optimal frontier.

        Raises CannotFit: the law was fitted without the FLOPs of each run.
        """
        if self.k is None:
            raise CannotFit("fitted without FLOPs: give fit_chinchilla those of each run")
        product = np.asarray(compute) / self.k
        centre = self._optimum(self.theta, product)
        spread = self._optimum(self.spread(compute), product)
        return Optimum(*centre, *map(fitting.around, spread, centre))

    def _optimum(self, theta: Any, product: Any) -> tuple[Any, Any, Any]:
        """Minimise the loss for one N D: where alpha A / N^alpha = beta B / D^beta."""
        _, A, B, alpha, beta = theta
        ratio = (alpha * A) / (beta * B)
        params = (ratio * product**beta) ** (1 / (alpha + beta))
        examples = product / params
        return params, examples, self.formula(theta, params, examples)

    def describe(self) -> str:
        """Write the law in one line."""
        return (
            f"L(N, D) = {self.E:.3g} + {self.A:.3g} / N^{self.alpha:.3g} + "
            f"{self.B:.3g} / D^{self.beta:.3g}; N ~ C^{self.a:.2f}, D ~ C^{self.b:.2f}"
        )


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Parameters, examples and loss at each compute, with their intervals (low, high)."""

    params: Values
    examples: Values
    loss: Values
    params_band: tuple[Values, Values]
    examples_band: tuple[Values, Values]
    loss_band: tuple[Values, Values]


def fit_chinchilla(
    params: Numbers,
    examples: Numbers,
    loss: Numbers,
    *,
    flops: Numbers | None = None,
    delta: float | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Chinchilla:
    """Fit L(N, D) = E + A / N^alpha + B / D^beta to runs.

    As in section D.2, Huber's loss of log L from a grid of starts. Differs from paper: with few
    runs its delta of 1e-3, far below their noise, fits little more than their median; steps are
    Levenberg and Marquardt's, not L-BFGS's; E, not log E, is fitted, so that it may be 0.

    Args:
        params, examples, loss: N, D (images seen, repetitions included) and the loss of each run.
        flops: C of each run, from which k = C / (N D) is estimated: `optimum` needs it.
        delta: of Huber's loss; 1e-3 in the paper, None: 1.345 times the noise.

    Raises CannotFit: the runs do not support the law.
    """
    given = {"params": params, "examples": examples, "loss": loss}
    given |= {} if flops is None else {"flops": flops}
    params, examples, loss, *costs = runs.columns(**given)
    _check(params, examples, loss)
    middle = np.exp(np.mean(np.log([params, examples]), axis=1))
    log_n, log_d = np.log(params / middle[0]), np.log(examples / middle[1])
    lowest = loss.min()

    def model(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        E, log_a, alpha, log_b, beta = theta.T[:, :, None]
        by_params, by_examples = np.exp(log_a - alpha * log_n), np.exp(log_b - beta * log_d)
        total = E + by_params + by_examples
        slopes = [by_params, -by_params * log_n, by_examples, -by_examples * log_d]
        slopes = np.stack([np.ones_like(total), *slopes], -1)
        return np.log(total), slopes / total[..., None]

    grid = itertools.product((0.1, 0.4, 1.0), (0.1, 0.4, 1.0), (0.0, 0.5, 0.8, 0.95), (0.2, 0.8))
    starts = []
    for alpha, beta, part, by_params in grid:
        rest = loss.mean() - part * lowest
        logs = np.log([by_params * rest, (1 - by_params) * rest])
        starts.append((part * lowest, logs[0], alpha, logs[1], beta))
    least, most = runs.EXPONENTS
    bounds = fitting.Bounds(
        low=np.array([0, -np.inf, least, -np.inf, least]),
        high=np.array([lowest, np.inf, most, np.inf, most]),
        loose=np.array([-lowest, -np.inf, least, -np.inf, least]),
    )

    def named(theta: np.ndarray) -> dict[str, Any]:
        E, log_a, alpha, log_b, beta = theta.T
        A = np.exp(log_a + alpha * np.log(middle[0]))
        B = np.exp(log_b + beta * np.log(middle[1]))
        return {"E": E, "A": A, "B": B, "alpha": alpha, "beta": beta}

    def exponents(law: dict[str, Any]) -> dict[str, Any]:
        total = law["alpha"] + law["beta"]
        return {"a": law["beta"] / total, "b": law["alpha"] / total}

    settings: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed, "delta": delta}
    settings |= {"exponents": ["alpha", "beta"], "derived": exponents}
    law, _ = fitting.fit(model, np.log(loss), np.array(starts), bounds, named, **settings)
    if not costs:
        return Chinchilla(**law, k=None, k_spread=None)
    ratio = costs[0] / (params * examples)
    k, k_spread = np.exp(np.mean(np.log(ratio))), ratio.max() / ratio.min()
    return Chinchilla(**law, k=float(k), k_spread=float(k_spread))


def _check(params: np.ndarray, examples: np.ndarray, loss: np.ndarray) -> None:
    runs.check_count("L(N, D)", 5, len(loss), MIN_RUNS)
    for name, values in (("numbers of parameters", params), ("numbers of examples", examples)):
        runs.check_range("L(N, D)", name, values, MIN_DIFFERENT, MIN_RANGE)
    logs = np.log(np.column_stack([params, examples]))
    if abs(np.corrcoef(logs.T)[0, 1]) > 0.98:
        raise CannotFit("parameters and examples grow together: vary one, keep the other")
    runs.falls("loss", logs, np.log(loss), ["parameters", "examples"])
