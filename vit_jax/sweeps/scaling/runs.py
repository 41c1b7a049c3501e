# SPDX-License-Identifier: Apache-2.0
"""Runs as columns of numbers: why they may not support a law, and how well one foretells them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from vit_jax.errors import UserError

Numbers = Sequence[float | int] | np.ndarray
At = Numbers | float | int  # where a law is evaluated
# Exponents outside are no law of scaling, but a fit that found none.
EXPONENTS = (0.005, 5.0)


class CannotFit(UserError):
    """The data do not support the law: one line that names why, and what would."""


def column(name: str, values: object) -> np.ndarray:
    """Read a column of positive numbers; raises CannotFit for anything else."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise CannotFit(f"{name} must be numbers, one for each run") from None
    if array.ndim != 1:
        raise CannotFit(f"{name} must be one number for each run, not of shape {array.shape}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if len(bad):
        wrong = f"{name} of run {bad[0]} is {array[bad[0]]:g}"
        raise CannotFit(f"{wrong}: all must be finite and above zero; leave the run out")
    return array


def columns(**values: object) -> list[np.ndarray]:
    """Read columns of equal length and sort their runs, so that their order means nothing.

    Raises CannotFit: of different lengths, or no positive numbers.
    """
    arrays = [column(name, value) for name, value in values.items()]
    sizes = {name: len(array) for name, array in zip(values, arrays, strict=True)}
    if len(set(sizes.values())) > 1:
        raise CannotFit("of each run one number is needed: got " + str(sizes))
    order = np.lexsort(arrays[::-1])
    return [array[order] for array in arrays]


def falls(name: str, columns: np.ndarray, log_error: np.ndarray, names: list[str]) -> None:
    """Raise CannotFit where errors do not fall along each of `columns` [N, K] beyond their noise.

    A straight line through logarithms; each slope must be negative by Student's t at 97.5 %.
    """
    design = np.column_stack([columns - columns.mean(0), np.ones(len(columns))])
    slopes, *_ = np.linalg.lstsq(design, log_error, rcond=None)
    spare = len(columns) - design.shape[1]
    noise = np.sum((log_error - design @ slopes) ** 2) / max(spare, 1)
    spread = np.sqrt(noise * np.diag(np.linalg.pinv(design.T @ design)))
    for slope, std, column in zip(slopes, spread, names, strict=False):
        if slope >= 0:
            raise CannotFit(f"{name} rises with {column}: no law of scaling; check the larger runs")
        if -slope < special.stdtrit(max(spare, 1), 0.975) * std:
            flat = f"{name} does not fall with {column} by more than its noise"
            raise CannotFit(f"{flat}: add runs over a wider range, or repeat them with other seeds")


def check_count(law: str, num_parameters: int, count: int, least: int) -> None:
    """Raise CannotFit for too few runs."""
    if count < least:
        raise CannotFit(f"{count} runs: {law} has {num_parameters} parameters, and needs {least}")


def check_range(law: str, name: str, values: np.ndarray, least: int, factor: float) -> None:
    """Raise CannotFit for fewer than `least` different values, or a range below `factor`."""
    different = len(np.unique(values))
    if different < least:
        raise CannotFit(f"{different} different {name}: {law} needs at least {least}")
    if values.max() < factor * values.min():
        span = f"{name} span a factor of {values.max() / values.min():.3g}"
        raise CannotFit(f"{span}: {law} needs at least {factor:g}; add smaller or larger runs")


def check_exponents(
    intervals: Mapping[str, tuple[float, float]], centre: dict[str, float], names: Sequence[str]
) -> None:
    """Raise CannotFit for an exponent that the runs leave open."""
    for name in names:
        low, high = intervals[name]
        if low <= EXPONENTS[0] or high >= EXPONENTS[1]:
            raise CannotFit(
                f"the runs do not determine {name}: {centre[name]:.2g}, but anything from "
                f"{low:.2g} to {high:.2g} fits as well; add runs over a wider range"
            )


def ten(power: float) -> str:
    """Write a power of ten as 1e18."""
    return f"1e{round(np.log10(power))}"


def unit_of(compute: np.ndarray) -> float:
    """Return the power of ten next to the geometric mean."""
    return float(10.0 ** np.round(np.mean(np.log10(compute))))


def frontier(compute: Numbers, error: Numbers, *, tolerance: float = 0.0) -> np.ndarray:
    """Return the indices, by compute, of the runs that none beats: cheaper and at least as good.

    A run that is dearer by `tolerance`, relatively, may still beat another of its budget.

    Raises CannotFit: no positive numbers, or not as many of each.
    """
    columns(compute=compute, error=error)
    order = np.lexsort((np.asarray(error), np.asarray(compute)))
    costs, errors = np.asarray(compute, np.float64)[order], np.asarray(error, np.float64)[order]
    best = np.minimum.accumulate(errors)
    before = np.append(np.inf, best)  # the least error of the first i runs
    affordable = np.searchsorted(costs, costs * (1 + tolerance), side="right")
    return order[(errors < before[:-1]) & (errors <= before[affordable])]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A law fitted without the runs of most compute, and how it predicts them.

    `compute` and `measured` are those of the runs held out, `low` and `high` the law's band there;
    `relative_error` is predicted / measured - 1, and `worst` the largest of them by size.
    """

    compute: tuple[float, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    relative_error: tuple[float, ...]
    worst: float


def held_out(
    fit: Callable[..., Any],
    inputs: Sequence[Numbers],
    error: Numbers,
    compute: Numbers,
    *,
    share: float = 0.2,
) -> HeldOut:
    """Fit without the runs of most compute, about `share` of all and at least one; predict them.

    Args:
        fit: a function of `inputs` and the error, such as fit_power_law.
        inputs: what the law predicts from: (compute,), or (params, examples).
        error, compute: of each run; runs of equal compute are all held out.
        share: of the runs.

    Raises CannotFit: the others do not support the law.
    """
    costs = column("compute", compute)
    measured = column("error", error)
    arrays = [np.asarray(values, np.float64) for values in inputs]
    if not len(costs) or {len(costs)} != {len(array) for array in (measured, *arrays)}:
        raise CannotFit("of each run one number is needed in every column")
    count = max(1, round(share * len(costs)))
    out = costs >= np.sort(costs)[-count] * (1 - 1e-9)
    law = fit(*(array[~out] for array in arrays), measured[~out])
    predicted = law.predict(*(array[out] for array in arrays))
    low, high = law.band(*(array[out] for array in arrays))
    relative = predicted / measured[out] - 1
    columns = (costs[out], measured[out], predicted, low, high, relative)
    worst = float(relative[np.argmax(np.abs(relative))])
    return HeldOut(*(tuple(column.tolist()) for column in columns), worst=worst)
