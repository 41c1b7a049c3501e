# SPDX-License-Identifier: Apache-2.0
"""Metrics of numbers, in numpy: MAE, RMSE and R2 of each output, and their means."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64


def errors(
    guess: Float[np.ndarray, "M K"], truth: Float[np.ndarray, "M K"]
) -> dict[str, Float64[np.ndarray, " K"]]:
    """Return mae, rmse and r2 of each output, over the images where it is known (not NaN).

    R2 is 1 minus the squared error over that of the mean of the truth, as in scikit-learn; NaN
    where the truth is the same in all images, or known of fewer than two. What is known of no image
    has NaN in all.
    """
    rows = [
        _errors(g[~np.isnan(t)].astype(np.float64), t[~np.isnan(t)].astype(np.float64))
        for g, t in zip(guess.T, truth.T, strict=True)
    ]
    return {key: np.array([row[key] for row in rows]) for key in ("mae", "rmse", "r2")}


def _errors(guess: Float[np.ndarray, " M"], truth: Float[np.ndarray, " M"]) -> dict[str, float]:
    if not len(truth):
        return dict.fromkeys(("mae", "rmse", "r2"), float("nan"))
    error = guess - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "r2": 1 - float((error**2).sum()) / spread if spread else float("nan"),
    }


def summary(
    guess: Float[np.ndarray, "M K"], truth: Float[np.ndarray, "M K"], names: Sequence[str]
) -> dict[str, float]:
    """Return mae, rmse and r2, means over the outputs, and of several outputs "mae_NAME" too.

    What is known of no image is left out.
    """
    found = {}
    for key, values in errors(guess, truth).items():
        if not np.isnan(values).all():
            found[key] = float(np.nanmean(values))
        if len(names) > 1:
            of = zip(slugs(names), values.tolist(), strict=True)
            found |= {f"{key}_{name}": x for name, x in of if x == x}
    return found


def slugs(names: Sequence[str]) -> list[str]:
    """Return the outputs' names as a metric has them: of a-z, 0-9 and _, each another."""
    plain = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in names]
    own = len({*plain}) == len(plain) and all(plain)
    return plain if own else [f"{k}_{name}".strip("_") for k, name in enumerate(plain)]
