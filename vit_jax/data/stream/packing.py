# SPDX-License-Identifier: Apache-2.0
"""Which row of patches holds which images of a batch (Patch n' Pack, arXiv:2307.06304).

A function of the images' sizes alone, which are one of the seed and the step. Every image of a
batch has a place: where their own sizes need more room than there is, the largest become smaller.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vit_jax.data.images.native import native_grids


class Packed(NamedTuple):
    """Where the B images of a batch lie in R rows, of at most S images each.

    Attributes:
        grids: [B, 2], the (rows, columns) of patches of each image.
        images: [R, S], the images of each row in their order; -1 for none.
        offsets: [R, S], the patches of the row before each of them.
    """

    grids: Int[np.ndarray, "B 2"]
    images: Int[np.ndarray, "R S"]
    offsets: Int[np.ndarray, "R S"]


def slots(batch_size: int, rows: int, length: int) -> int:
    """Return S, the most images of a row: twice their mean."""
    return min(length, 2 * math.ceil(batch_size / rows))


def pack(
    sizes: Float[np.ndarray, "B 2"] | Int[np.ndarray, "B 2"],
    patch: tuple[int, int],
    rows: int,
    length: int,
) -> Packed:
    """Give each image of (height, width) pixels a place, the largest first, in the first row with
    room.

    An image keeps its size, each side rounded up to whole patches, and none has more patches than a
    limit: `length`, or, where they do not fit, the largest with which they do.
    """
    most = slots(len(sizes), rows, length)

    def placed(limit: int) -> Packed | None:
        return _first_fit(native_grids(sizes, patch, limit, 1.0), rows, length, most)

    if found := placed(length):
        return found
    low, high = 1, length  # images of one patch each fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if placed(middle) else (low, middle)
    found = placed(low)
    assert found is not None, f"{len(sizes)} images of a patch in {rows} rows of {length}"
    return found


def _first_fit(grids: np.ndarray, rows: int, length: int, most: int) -> Packed | None:
    areas = grids.prod(axis=1)
    if areas.sum() > rows * length:
        return None
    used, count = np.zeros(rows, int), np.zeros(rows, int)
    images = np.full((rows, most), -1, np.int32)
    offsets = np.zeros((rows, most), np.int32)
    for image in np.argsort(-areas, kind="stable").tolist():
        fits = (used + areas[image] <= length) & (count < most)
        row = int(fits.argmax())
        if not fits[row]:
            return None
        images[row, count[row]], offsets[row, count[row]] = image, used[row]
        used[row] += areas[image]
        count[row] += 1
    return Packed(grids, images, offsets)
