# SPDX-License-Identifier: Apache-2.0
"""How well a law foretells runs larger than those it was fitted to."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.analysis.scaling import runs
from vit_jax.analysis.scaling.runs import CannotFit, Numbers


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
    costs = runs.column("compute", compute)
    measured = runs.column("error", error)
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
