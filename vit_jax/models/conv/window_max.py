# SPDX-License-Identifier: Apache-2.0
"""Max-pool with an element-wise backward pass, for XLA's CPU backend.

XLA's gradient scatters single numbers and takes five times as long. Other backends have kernels.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# What is added (before, after) the rows and the columns of a map.
Pads = tuple[tuple[int, int], tuple[int, int]]


def reduce_max(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> Float[Array, "B P Q C"]:
    """Take the maximum of square windows; the first of equal numbers gets the gradient."""
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    padding = ((0, 0), *pads, (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def window_max(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> Float[Array, "B P Q C"]:
    """Return `reduce_max`, with an element-wise gradient."""
    return reduce_max(x, size, stride, pads)


def _max_forward(x: jax.Array, *window: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    y = reduce_max(x, *window)
    return y, (x, y)


def _max_backward(
    size: int, stride: int, pads: Pads, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array]:
    x, y = saved
    free = jnp.ones(y.shape, bool)
    gradients = []
    for tap in _windows(x, size, stride, pads):
        hit = free & (tap == y)
        free &= ~hit
        gradients.append(jnp.where(hit, dy, 0))
    return (_sum_windows(gradients, size, stride, pads, x.shape),)


window_max.defvjp(_max_forward, _max_backward)


def _windows(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> list[Float[Array, "B P Q C"]]:
    """Return for each tap of a square window, row by row, its input at each position."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    rows, columns = ((n - size) // stride * stride + 1 for n in padded.shape[1:3])
    taps = itertools.product(range(size), repeat=2)
    return [padded[:, i : i + rows : stride, j : j + columns : stride] for i, j in taps]


def _sum_windows(
    gradients: Sequence[Float[Array, "B P Q C"]],
    size: int,
    stride: int,
    pads: Pads,
    shape: tuple[int, ...],
) -> Float[Array, "B H W C"]:
    """Transpose `_windows`: add each tap's gradient where the tap read, on a map of `shape`.

    Positions a * stride + b of a row (or column) share the taps b, b + stride, ...: each residue b
    is a sum of shifted gradients, and the residues are interleaved at the end.
    """
    batch, num_rows, num_columns, channels = shape
    padded = [n + sum(pad) for n, pad in zip((num_rows, num_columns), pads, strict=True)]
    cells = [-(-n // stride) for n in padded]  # positions of each residue
    residues = []
    for b in itertools.product(range(stride), repeat=2):
        total = jnp.zeros((batch, *cells, channels), gradients[0].dtype)
        for i, j in itertools.product(*(range(first, size, stride) for first in b)):
            dx = gradients[i * size + j]
            edges = [
                (tap // stride, cells[d] - dx.shape[1 + d] - tap // stride, 0)
                for d, tap in enumerate((i, j))
            ]
            zero = jnp.zeros((), dx.dtype)
            total += jax.lax.pad(dx, zero, ((0, 0, 0), *edges, (0, 0, 0)))
        residues.append(total)
    if stride > 1:
        rows = [jnp.stack(residues[k * stride :][:stride], 3) for k in range(stride)]
        whole = jnp.stack(rows, 2)  # (B, rows, residue, columns, residue, C)
    else:
        whole = residues[0]
    whole = whole.reshape(batch, cells[0] * stride, cells[1] * stride, channels)
    (top, _), (left, _) = pads
    return whole[:, top : top + num_rows, left : left + num_columns]
