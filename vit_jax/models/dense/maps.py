# SPDX-License-Identifier: Apache-2.0
"""Maps of another size: PyTorch's bilinear `interpolate`, with and without align_corners."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.resample import bilinear as half_pixels
from vit_jax.models.resample import resized_map, sampled, triangle

__all__ = ["corners", "half_pixels", "resize_map"]


def corners(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return bilinear interpolation that keeps the first and the last sample: align_corners."""
    return sampled(np.arange(new) * (old - 1) / max(new - 1, 1), old, triangle, reach=1)


def resize_map(
    x: Float[Array, "B H W C"],
    size: tuple[int, int],
    matrix: Callable[[int, int], np.ndarray] = half_pixels,
) -> Float[Array, "B P Q C"]:
    """Bring maps to (P, Q) by a matrix for each axis, without antialias.

    Products with constant matrices: gathers would be sums in no fixed order in the backward pass of
    a GPU.
    """
    for axis, new in enumerate(size, 1):
        if new != (old := x.shape[axis]):
            weights = jnp.asarray(matrix(old, new), jnp.float32)
            x = jax.jit(resized_map, static_argnums=2)(x, weights, axis)  # by its name in a program
    return x
