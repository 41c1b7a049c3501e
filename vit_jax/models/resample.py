# SPDX-License-Identifier: Apache-2.0
"""Patch kernels, position tables and maps of another size, by constant matrices.

FlexiViT (arXiv:2212.08013), section 3.4: pixels x resized by B are seen by the kernel (B^T)^+ w as
x by w, or as nearly as can be. big_vision's proj/flexi resizes the pixels by tf.image's bilinear,
which does not antialias, and positions by jax.image's, which does where a grid shrinks. Maps are
resized as by PyTorch's bilinear `interpolate`, with and without align_corners. All are separable.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Grid = tuple[int, int]
Matrix = Callable[[int, int], np.ndarray]  # (old, new) -> [new, old]


def triangle(x: np.ndarray) -> np.ndarray:
    """Return the kernel of bilinear interpolation."""
    return np.maximum(1 - np.abs(x), 0)


def centres(old: int, new: int) -> np.ndarray:
    """Return where the new samples' centres lie, in indices of the old (half-pixel centres)."""
    return (np.arange(new) + 0.5) * old / new - 0.5


def sampled(
    positions: np.ndarray, old: int, kernel: Callable[[np.ndarray], np.ndarray], reach: int
) -> np.ndarray:
    """Weigh the 2 * reach neighbours of each position; those beyond the ends are the ends."""
    weights = np.zeros((len(positions), old))
    first = np.floor(positions).astype(int)
    for tap in range(1 - reach, reach + 1):
        at = first + tap
        index = (np.arange(len(positions)), at.clip(0, old - 1))
        np.add.at(weights, index, kernel(positions - at))
    return weights


def antialiased(
    old: int, new: int, kernel: Callable[[np.ndarray], np.ndarray] = triangle
) -> Float[np.ndarray, "new old"]:
    """Return a resize whose kernel is widened where it shrinks; by default jax.image's "linear"."""
    # Weights beyond the ends are dropped.
    weights = kernel((np.arange(old) - centres(old, new)[:, None]) / max(old / new, 1))
    return weights / weights.sum(axis=1, keepdims=True)


def bilinear(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return torch's bilinear without antialias, which is tf.image's."""
    return sampled(centres(old, new), old, triangle, reach=1)


def corners(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return bilinear interpolation that keeps the first and the last sample: align_corners."""
    return sampled(np.arange(new) * (old - 1) / max(new - 1, 1), old, triangle, reach=1)


@functools.cache
def pseudo_inverse(old: int, new: int, matrix: Matrix = bilinear) -> Float[np.ndarray, "new old"]:
    """Return what resizes a kernel so that it sees resized pixels as it saw the old."""
    return np.linalg.pinv(matrix(old, new).T)


def resized_parameter(
    value: Float[Array, "H W D"], rows: Float[Array, "P H"], columns: Float[Array, "Q W"]
) -> Float[Array, "P Q D"]:
    """Resize a parameter in float32, once a step: FLOPs of an image leave it out, by this name."""
    return jnp.einsum("pi,qj,ijd->pqd", rows, columns, value, precision=jax.lax.Precision.HIGHEST)


def resized(value: Float[Array, "H W *D"], new: Grid, matrix: Matrix) -> Float[Array, "P Q *D"]:
    """Resize a parameter's first two axes by constant matrices."""
    flat = value.reshape(*value.shape[:2], -1)
    sides = (matrix(old, side) for old, side in zip(value.shape[:2], new, strict=True))
    rows, columns = (jnp.asarray(side, jnp.float32) for side in sides)
    out = jax.jit(resized_parameter)(flat, rows, columns)  # by its name in the program
    return out.reshape(*new, *value.shape[2:])


def resized_map(
    x: Float[Array, "B H W C"], weights: Float[Array, "new old"], axis: int
) -> Float[Array, "B P Q C"]:
    """Resize an axis of activations by a constant matrix: FLOPs leave it out, by this name.

    Sums are in float32, the result in the dtype of `x`.
    """
    how = {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    subscripts = "pi,biwc->bpwc" if axis == 1 else "pi,bhic->bhpc"
    return jnp.einsum(subscripts, weights.astype(x.dtype), x, **how).astype(x.dtype)


def resize_map(
    x: Float[Array, "B H W C"],
    size: tuple[int, int],
    matrix: Callable[[int, int], np.ndarray] = bilinear,
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
