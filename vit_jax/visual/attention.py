# SPDX-License-Identifier: Apache-2.0
"""Attention weights on an image: rollout, distances, windows, and where every head looks.

They are what `models.captured` records. A grid is (rows, columns) of tokens, numbered in row-major
order; tokens before the patches (class, distillation, registers) are the prefix.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jaxtyping import Array, Float, Int

from vit_jax import models, trees
from vit_jax.models import ModelConfig, base
from vit_jax.models.facts import Heads
from vit_jax.models.layers.window import fit_window

Grid = tuple[int, int]
Seen = Mapping[str, np.ndarray]


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


class HeadMaps(NamedTuple):
    """What the heads of one layer look at."""

    kind: str  # of layer: "block", "local block", "class attention", "pooling"
    layer: int  # its number among all that attend, from 0
    name: str  # its kind, or of a Swin "stage 2 block 1"
    query: str  # who looks: "class token"; of a Swin's windows, what tokens receive
    # A value for each token of the grid; those of talking heads may be negative.
    maps: Float[np.ndarray, "h rows columns"]
    # `attention_distance` in pixels; None where one learned token is all that looks.
    distance: Float[np.ndarray, "h"] | None = None
    gates: Float[np.ndarray, "h"] | None = None  # GPSA's share of attention by position
    edges: tuple[list[int], list[int]] = ([], [])  # rows, columns before which a window begins


def head_maps(
    cfg: ModelConfig, params: Mapping[str, Any], seen: Seen, image_size: Grid
) -> list[HeadMaps]:
    """Lay out what `models.captured` recorded of one image; [] for a family without attention.

    `params` are the model's, `seen` is of a batch of one, `image_size` is (H, W).
    """
    if models.family(cfg).windows:
        return _windowed(cfg, seen, image_size)
    look = models.attention(cfg, image_size)
    if look is None:
        return []
    grid = models.patch_grid(cfg, image_size)
    step = image_size[0] / grid[0], image_size[1] / grid[1]
    seen = {name: np.asarray(leaf, np.float32) for name, leaf in seen.items()}
    found: list[HeadMaps] = []
    for heads in look.layers:
        if heads.weights in seen:
            count = found[-1].layer + 1 if found else 0
            found += _of_layers(heads, count, params, seen, grid, step)
    return found


def _of_layers(
    heads: Heads,
    before: int,
    params: Mapping[str, Any],
    seen: Seen,
    grid: Grid,
    step: tuple[float, float],
) -> list[HeadMaps]:
    """Show the layers of one kind, after `before` others."""
    if heads.readers is None:  # one token looks: [..., 1, h, 1, N]
        stacked = seen[heads.weights]
        stacked = stacked.reshape(-1, *stacked.shape[-3:])
        return [
            HeadMaps(heads.kind, before + i, heads.kind, heads.query, _on_grid(rows[:, 0], grid))
            for i, rows in enumerate(stacked)
        ]
    count, found = grid[0] * grid[1], []
    gating, tokens = dict(trees.named_leaves(params)).get(heads.gates), np.arange(count)[None]
    for i in range(len(seen[heads.weights])):
        for query, name in ((heads.query, heads.weights), *heads.also):
            weights = seen[name][i]
            weights = weights.reshape(weights.shape[-3:])  # without the axis of the one image
            among = weights[None, :, -count:, -count:]  # the patches' attention to patches
            found.append(
                HeadMaps(
                    heads.kind,
                    before + i,
                    heads.kind,
                    query,
                    _on_grid(weights[:, heads.readers].mean(axis=1), grid),
                    attention_distance(among, tokens, grid, step),
                    gates(gating[i]) if gating is not None and name == heads.weights else None,
                )
            )
    return found


def _on_grid(rows: Float[np.ndarray, "h N"], grid: Grid) -> Float[np.ndarray, "h rows columns"]:
    """Drop what comes before the patches."""
    return rows[:, rows.shape[1] - grid[0] * grid[1] :].reshape(-1, *grid)


def _windowed(cfg: Any, seen: Seen, image_size: Grid) -> list[HeadMaps]:
    """Show what every token gets from all queries: windows have no query of the whole image."""
    found: list[HeadMaps] = []
    family = models.family(cfg)
    assert family.windows is not None
    grids, windows = family.grids(cfg, image_size), family.windows(cfg)
    patch = base.pair(cfg.patch, "patch")
    for stage, depth in enumerate(cfg.depths):
        grid, step = grids[stage], tuple(side * 2.0**stage for side in patch)
        for i in range(depth):
            window, shift = fit_window(grid, windows[stage], shifted=i % 2 == 1)
            weights = np.asarray(seen[f"stage{stage}/block{i}/attn/weights"][0], np.float32)
            tokens = window_tokens(grid, window, shift)
            edges = [window_edges(*axis) for axis in zip(grid, window, shift, strict=True)]
            found.append(
                HeadMaps(
                    "block",
                    len(found),
                    f"stage {stage} block {i}",
                    "received in shifted windows" if any(shift) else "received in windows",
                    received(weights, tokens).reshape(-1, *grid),
                    attention_distance(weights, tokens, grid, (step[0], step[1])),
                    edges=(edges[0], edges[1]),
                )
            )
    return found
