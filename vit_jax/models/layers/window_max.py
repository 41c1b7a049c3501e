# SPDX-License-Identifier: Apache-2.0
"""Max-pool whose backward pass is element-wise work on windows.

For XLA's CPU backend, where the gradient of a max-pool is a scatter of single numbers and takes
five times as long. Other backends have kernels of their own.
"""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# What is added (before, after) the rows and the columns of a map.
Pads = tuple[tuple[int, int], tuple[int, int]]


def reduce_max(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> Float[Array, "B P Q C"]:
    """Take the maximum of square windows; the first of equal numbers gets the gradient."""
    return jax.lax.reduce_window(
        x,
        -jnp.inf,
        jax.lax.max,
        (1, size, size, 1),
        (1, stride, stride, 1),
        ((0, 0), *pads, (0, 0)),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def window_max(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> Float[Array, "B P Q C"]:
    """Do the same as `reduce_max`; the gradient is element-wise."""
    return reduce_max(x, size, stride, pads)


def _max_forward(
    x: jax.Array, size: int, stride: int, pads: Pads
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    y = reduce_max(x, size, stride, pads)
    return y, (x, y)


def _max_backward(
    size: int, stride: int, pads: Pads, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array]:
    x, y = saved
    free = jnp.ones(y.shape, bool)
    parts = []
    for tap in _windows(x, size, stride, pads):
        hit = free & (tap == y)
        free &= ~hit
        parts.append(jnp.where(hit, dy, 0))
    return (_sum_windows(parts, size, stride, pads, x.shape),)


window_max.defvjp(_max_forward, _max_backward)


def _windows(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> list[Float[Array, "B P Q C"]]:
    """Return for each tap of a square window, row by row, what it sees at each position."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    batch, rows, columns, channels = padded.shape
    ends = [(n - size) // stride * stride + 1 for n in (rows, columns)]
    return [
        jax.lax.slice(
            padded,
            (0, i, j, 0),
            (batch, i + ends[0], j + ends[1], channels),
            (1, stride, stride, 1),
        )
        for i, j in itertools.product(range(size), repeat=2)
    ]


def _sum_windows(
    parts: Sequence[Float[Array, "B P Q C"]],
    size: int,
    stride: int,
    pads: Pads,
    shape: tuple[int, ...],
) -> Float[Array, "B H W C"]:
    """Transpose `_windows`: add each tap's part where the tap looked, on a map of `shape`.

    Positions a * stride + b of a row (or column) share the taps b, b + stride, ...: each residue b
    is a sum of shifted parts, and the residues are interleaved at the end.
    """
    batch, num_rows, num_columns, channels = shape
    padded = [n + sum(pad) for n, pad in zip((num_rows, num_columns), pads, strict=True)]
    cells = [-(-n // stride) for n in padded]  # positions of each residue
    residues = []
    for b in itertools.product(range(stride), repeat=2):
        total = jnp.zeros((batch, *cells, channels), parts[0].dtype)
        for i, j in itertools.product(*(range(first, size, stride) for first in b)):
            part = parts[i * size + j]
            edges = [
                (tap // stride, cells[d] - part.shape[1 + d] - tap // stride)
                for d, tap in enumerate((i, j))
            ]
            zero = jnp.zeros((), part.dtype)
            total += jax.lax.pad(part, zero, ((0, 0, 0), *((*e, 0) for e in edges), (0, 0, 0)))
        residues.append(total)
    if stride > 1:
        rows = [jnp.stack(residues[k * stride :][:stride], 3) for k in range(stride)]
        whole = jnp.stack(rows, 2)  # (B, rows, residue, columns, residue, C)
    else:
        whole = residues[0]
    whole = whole.reshape(batch, cells[0] * stride, cells[1] * stride, channels)
    (top, _), (left, _) = pads
    return whole[:, top : top + num_rows, left : left + num_columns]
