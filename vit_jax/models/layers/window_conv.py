# SPDX-License-Identifier: Apache-2.0
"""Convolution and max-pool whose backward passes are matmuls and element-wise work on windows.

For XLA's CPU backend: a convolution's forward pass is as fast there as PyTorch's, but its weight
gradient takes twice as long, a 7x7 stem's four times, and the gradient of a max-pool is a scatter
of single numbers. Other backends have kernels of their own for all of them.
"""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# What is added (before, after) the rows and the columns of a map.
Pads = tuple[tuple[int, int], tuple[int, int]]

# Below this many channels a row of the im2col matrix is one number of one tap at all positions, and
# not all channels of one position: copies of a few numbers each would take longer than the matmul.
_NARROW = 16


def convolve(
    x: Float[Array, "B H W I"],
    kernel: Float[Array, "k k J O"],
    stride: int,
    pads: Pads,
    groups: int = 1,
) -> Float[Array, "B P Q O"]:
    """Convolve with zeros around, as XLA does it; I = groups * J."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(stride, stride),
        padding=pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def window_conv(
    x: Float[Array, "B H W I"], kernel: Float[Array, "k k I O"], stride: int, pads: Pads
) -> Float[Array, "B P Q O"]:
    """Do the same without groups; the backward pass is one of matmuls."""
    return convolve(x, kernel, stride, pads)


def _conv_forward(
    x: jax.Array, kernel: jax.Array, stride: int, pads: Pads
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return convolve(x, kernel, stride, pads), (x, kernel)


def _conv_backward(
    stride: int, pads: Pads, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    narrow = kernel.shape[2] < _NARROW
    weight_gradient = _narrow_weight_gradient if narrow else _weight_gradient
    return _input_gradient(kernel, dy, x.shape, stride, pads), weight_gradient(
        x, dy, kernel, stride, pads
    )


window_conv.defvjp(_conv_forward, _conv_backward)


def _weight_gradient(
    x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int, pads: Pads
) -> jax.Array:
    """Multiply what each tap of the kernel saw, [I, B*P*Q], with [B*P*Q, O]."""
    flat = dy.reshape(-1, dy.shape[-1])
    taps = windows(x, kernel.shape[0], stride, pads)
    parts = [tap.reshape(-1, tap.shape[-1]).T @ flat for tap in taps]
    return jnp.stack(parts).reshape(kernel.shape)


def _narrow_weight_gradient(
    x: jax.Array, dy: jax.Array, kernel: jax.Array, stride: int, pads: Pads
) -> jax.Array:
    """Do the same a row of the kernel at a time, [k*I, B*P*Q] by [B*P*Q, O].

    Rows and columns of one residue modulo the stride are one plane of each channel, so that what a
    tap saw is whole runs of numbers.
    """
    size, channels = kernel.shape[0], x.shape[-1]
    num_rows, num_columns = dy.shape[1:3]
    flat = dy.reshape(-1, dy.shape[-1])
    cells = [-(-(n + sum(pad)) // stride) for n, pad in zip(x.shape[1:3], pads, strict=True)]
    after = [c * stride - n - pad[0] for c, n, pad in zip(cells, x.shape[1:3], pads, strict=True)]
    edges = ((0, 0), (pads[0][0], after[0]), (pads[1][0], after[1]), (0, 0))
    planes = jnp.pad(x, edges).reshape(-1, cells[0], stride, cells[1], stride, channels)
    planes = planes.transpose(2, 4, 5, 0, 1, 3)  # (residue, residue, I, B, rows, columns)
    parts = []
    for i in range(size):
        top, found = i // stride, planes[i % stride]
        row = jnp.stack(
            [
                found[j % stride, :, :, top : top + num_rows, j // stride :][..., :num_columns]
                for j in range(size)
            ]
        )
        parts.append(row.reshape(size * channels, -1) @ flat)
    return jnp.stack(parts).reshape(kernel.shape)


def _input_gradient(
    kernel: jax.Array, dy: jax.Array, shape: tuple[int, ...], stride: int, pads: Pads
) -> jax.Array:
    """Sum over the taps dy by that tap's transposed kernel, each where the tap looked."""
    flat = dy.reshape(-1, dy.shape[-1])
    taps = kernel.reshape(-1, *kernel.shape[2:])
    parts = [(flat @ tap.T).reshape(*dy.shape[:-1], -1) for tap in taps]
    return sum_windows(parts, kernel.shape[0], stride, pads, shape)


def windows(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads, fill: float = 0.0
) -> list[Float[Array, "B P Q C"]]:
    """Return for each tap of a square window, row by row, what it sees at each position."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)
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


def sum_windows(
    parts: Sequence[Float[Array, "B P Q C"]],
    size: int,
    stride: int,
    pads: Pads,
    shape: tuple[int, ...],
) -> Float[Array, "B H W C"]:
    """Transpose `windows`: add each tap's part where the tap looked, on a map of `shape`.

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
    """Do the same; the gradient is element-wise."""
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
    for tap in windows(x, size, stride, pads, -jnp.inf):
        hit = free & (tap == y)
        free &= ~hit
        parts.append(jnp.where(hit, dy, 0))
    return (sum_windows(parts, size, stride, pads, x.shape),)


window_max.defvjp(_max_forward, _max_backward)
