# SPDX-License-Identifier: Apache-2.0
"""What a network's first layers have learned: filters and positions, as small images.

Pure functions of parameters (figure 7, left and middle, of arXiv:2010.11929).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Components(NamedTuple):
    """Principal components of filters.

    Attributes:
        filters: of unit length, the one that explains most first; of either sign, the one whose
            largest value is positive.
        shares: of the variance that each explains.
    """

    filters: Float[np.ndarray, "n P Q C"]
    shares: Float[np.ndarray, "n"]


def principal_filters(kernel: Float[np.ndarray, "P Q C D"], count: int) -> Components:
    """Return the first principal components of D filters, or all where there are fewer."""
    shape, rows = kernel.shape[:3], np.asarray(kernel, np.float64).reshape(-1, kernel.shape[3]).T
    _, scales, components = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    count = min(count, len(components))
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    components = components * np.sign(largest)[:, None]
    shares = scales**2 / max((scales**2).sum(), np.finfo(np.float64).tiny)
    return Components(components[:count].reshape(count, *shape), shares[:count])


def position_similarity(
    table: Float[np.ndarray, "N D"], grid: tuple[int, int]
) -> Float[np.ndarray, "rows columns rows columns"]:
    """Return the cosine of every position's embedding with every other's, in -1..1.

    Args:
        table: of the patches alone, in row-major order.
        grid: their (rows, columns).
    """
    table = np.asarray(table, np.float64)
    length = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.maximum(length, np.finfo(np.float64).tiny)
    return (unit @ unit.T).reshape(*grid, *grid)
