# SPDX-License-Identifier: Apache-2.0
"""Attention weights on an image: rollout, distances, windows laid out on the grid.

Pure functions of what `models.captured` records. A grid is (rows, columns) of tokens, numbered in
row-major order; tokens before the patches (class, distillation, registers) are the prefix.
"""

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jaxtyping import Array, Float, Int

Grid = tuple[int, int]


def rollout(
    weights: Float[Array, "L B h N N"], before: Float[Array, "B N N"] | None = None
) -> Float[Array, "B N N"]:
    """Return how much of each token's output comes from each input token (arXiv:2005.00928).

    In a layer the mean over the heads and the residual count one half each; layers multiply.
    Rows sum to 1, as those of `weights` do. `before` is the rollout of the layers before these.
    """
    identity = jnp.eye(weights.shape[-1])
    layers = (weights.astype(jnp.float32).mean(axis=2) + identity[None, None]) / 2
    total = jnp.broadcast_to(identity[None], layers.shape[1:]) if before is None else before
    for layer in layers:
        total = jnp.matmul(layer, total, precision=jax.lax.Precision.HIGHEST)
    return total


def prepend_token(flow: Float[Array, "B N N"]) -> Float[Array, "B M M"]:
    """Add, as the first of M = N + 1, a token that has read itself only: ConViT's class token."""
    return jnp.pad(flow, ((0, 0), (1, 0), (1, 0))).at[:, 0, 0].set(1.0)


def attention_distance(
    weights: Float[np.ndarray, "W h n n"],
    tokens: Int[np.ndarray, "W n"],
    grid: Grid,
    step: tuple[float, float],
) -> Float[np.ndarray, "h"]:
    """Return each head's mean distance from a query to what it attends to.

    It is figure 7 (right) of arXiv:2010.11929 in pixels, and the non-locality of arXiv:2103.10697
    (section 4) in patches. Weights of talking heads may be negative: their size counts. Attention
    among all patches is one window; a token of -1 is neither query nor key; `step` is the distance
    between neighbours in rows and columns, in the unit of the result.
    """
    real = tokens >= 0
    y, x = (place * size for place, size in zip(np.divmod(tokens, grid[1]), step, strict=True))
    far = np.hypot(y[:, :, None] - y[:, None], x[:, :, None] - x[:, None])
    pairs = np.abs(weights, dtype=np.float32) * real[:, None, None]
    total = np.maximum(pairs.sum(axis=-1), np.finfo(np.float32).tiny)
    each = rearrange(np.einsum("whqk,wqk->whq", pairs, far) / total, "w h n -> h w n")
    return each[:, real].mean(axis=1)


def window_tokens(grid: Grid, window: Grid, shift: Grid) -> Int[np.ndarray, "W n"]:
    """Return which token of the grid stands at each place of the windows of a `WindowAttention`.

    The zeros that fill the last windows are -1. `window` and `shift` are those of `fit_window`.
    """
    tokens = np.arange(grid[0] * grid[1]).reshape(grid)
    tokens = np.roll(tokens, (-shift[0], -shift[1]), axis=(0, 1))
    fill = [(0, -side % size) for side, size in zip(grid, window, strict=True)]
    tokens = np.pad(tokens, fill, constant_values=-1)
    return rearrange(tokens, "(y p) (x q) -> (y x) (p q)", p=window[0], q=window[1])


def received(
    weights: Float[np.ndarray, "W h n n"], tokens: Int[np.ndarray, "W n"]
) -> Float[np.ndarray, "h N"]:
    """Return how much attention each token of the grid gets from all queries.

    The mean is 1, or less where some goes to the zeros that fill windows. `tokens` is from
    `window_tokens`.
    """
    real = tokens >= 0
    gets = rearrange((weights * real[:, None, :, None]).sum(axis=2), "w h n -> h w n")
    out = np.zeros((weights.shape[1], np.count_nonzero(real)), np.float32)
    out[:, tokens[real]] = gets[:, real]
    return out


def window_edges(side: int, size: int, shift: int) -> list[int]:
    """Return, along one axis, the tokens before which another window begins."""
    window = (np.arange(side) - shift) % side // size
    return [int(i) for i in np.flatnonzero(np.diff(window)) + 1]


def gates(gating_param: Float[np.ndarray, "h"]) -> Float[np.ndarray, "h"]:
    """Return the share of GPSA's attention that goes by position, by head (arXiv:2103.10697)."""
    return 1 / (1 + np.exp(-np.asarray(gating_param, np.float32)))
