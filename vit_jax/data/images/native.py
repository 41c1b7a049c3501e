# SPDX-License-Identifier: Apache-2.0
"""An image of its own shape as a row of patches: how many, by the published rule, and their order.

The rule is NaFlex's, as timm's get_image_size_for_seq and transformers' SigLIP 2 have it: the
largest image of the same shape whose sides, each rounded up to whole patches, are at most as many
patches.
"""

import functools

import numpy as np
from jaxtyping import Float, Int, Num

_LEAST, _MOST = 1e-6, 100.0  # between which the ratio is looked for
_CLOSE = 1e-5


def native_grids(
    sizes: Float[np.ndarray, "n 2"] | Int[np.ndarray, "n 2"],
    patch: tuple[int, int],
    length: int,
    largest: float = _MOST,
) -> Int[np.ndarray, "n 2"]:
    """Return the (rows, columns) of patches of images of (height, width), at most `length` each.

    The ratio of the resized image to the image is at most `largest`: 1 enlarges none. It is found
    by bisection, as in the published code, to the same interval.
    """
    sides = np.asarray(sizes, float)

    def grids(ratio: np.ndarray) -> np.ndarray:
        return np.maximum(np.ceil(sides * ratio[:, None] / patch), 1)

    low, high = np.full(len(sides), _LEAST), np.full(len(sides), _MOST)
    while (searched := high - low >= _CLOSE).any():
        middle = (low + high) / 2
        fits = grids(middle).prod(axis=1) <= length
        low = np.where(searched & fits, middle, low)
        high = np.where(searched & ~fits, middle, high)
    return grids(np.minimum(low, largest)).astype(np.int32)


@functools.lru_cache(maxsize=4096)  # of a dataset's images many have the same size
def native_grid(
    height: int, width: int, patch: tuple[int, int], length: int, largest: float = _MOST
) -> tuple[int, int]:
    """Return what `native_grids` does of one image."""
    rows, columns = native_grids(np.array([[height, width]]), patch, length, largest)[0].tolist()
    return rows, columns


def patchify(image: Num[np.ndarray, "H W C"], patch: tuple[int, int]) -> Num[np.ndarray, "N V"]:
    """Cut an image into patches row by row, each its pixels row by row, the channel fastest."""
    (height, width, channels), (rows, columns) = image.shape, patch
    cut = image.reshape(height // rows, rows, width // columns, columns, channels)
    return cut.swapaxes(1, 2).reshape(-1, rows * columns * channels)
