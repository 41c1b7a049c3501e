# SPDX-License-Identifier: Apache-2.0
"""What sweep files are written with: iterables of overrides, combined.

An override is {"optim.lr": 1e-3}: fields of the config by their paths, as `--config.optim.lr`
names them; "config" is the base file, "name" the run's where the fields that differ are not enough.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from vit_jax.errors import UserError

Overrides = dict[str, Any]


def axis(field: str, values: Iterable[Any]) -> list[Overrides]:
    """Return one override for each value: axis("model.dim", (64, 128))."""
    return [{field: value} for value in values]


def product(*axes: Iterable[Overrides]) -> Iterator[Overrides]:
    """Combine each override of the first axis with each of the second, and so on."""
    return map(_merged, itertools.product(*axes))


def zipped(*axes: Iterable[Overrides]) -> Iterator[Overrides]:
    """Combine the first overrides of all axes, then the second ones, and so on.

    Raises UserError: axes of different lengths.
    """
    columns = [list(values) for values in axes]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise UserError(f"zipped() needs axes of one length, not {', '.join(map(str, lengths))}")
    return map(_merged, zip(*columns, strict=True))


chain = itertools.chain  # all of the first axis, then all of the second, and so on


def log_spaced(low: float, high: float, count: int) -> list[float]:
    """Return `count` numbers from `low` to `high`, of three digits, a constant factor apart."""
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, count)]


def _merged(overrides: Iterable[Overrides]) -> Overrides:
    merged: Overrides = {}
    for each in overrides:
        for field in each:
            if field in merged:
                raise UserError(f"two axes of a sweep set {field}; drop it from one of them")
        merged |= each
    return merged
