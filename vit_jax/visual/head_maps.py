# SPDX-License-Identifier: Apache-2.0
"""Where every head of every layer looks in one image, of any family with attention."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from vit_jax import models, trees
from vit_jax.models import ModelConfig, base
from vit_jax.models.facts import Heads
from vit_jax.models.layers.window import fit_window
from vit_jax.visual import attention

Grid = attention.Grid
Seen = Mapping[str, np.ndarray]


class HeadMaps(NamedTuple):
    """What the heads of one layer look at.

    Attributes:
        kind: of layer: "block", "local block", "class attention", "pooling".
        layer: its number among all that attend, from 0.
        name: its kind, or of a Swin "stage 2 block 1".
        query: who looks: "class token"; a Swin's windows have no query of the whole image: what
            tokens receive.
        maps: a value for each token of the grid; those of talking heads may be negative.
        distance: mean distance of attention in pixels (`attention.attention_distance`); None where
            one learned token is all that looks.
        gates: GPSA's share of attention by position.
        edges: rows and columns before which another window begins.
    """

    kind: str
    layer: int
    name: str
    query: str
    maps: Float[np.ndarray, "h rows columns"]
    distance: Float[np.ndarray, "h"] | None = None
    gates: Float[np.ndarray, "h"] | None = None
    edges: tuple[list[int], list[int]] = ([], [])


def head_maps(
    cfg: ModelConfig, params: Mapping[str, Any], seen: Seen, image_size: Grid
) -> list[HeadMaps]:
    """Lay out what `models.captured` recorded of one image; [] for a family without attention.

    Args:
        cfg: of the model.
        params: its parameters.
        seen: as recorded, of a batch of one.
        image_size: (H, W).
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
    gates, found = dict(trees.named_leaves(params)).get(heads.gates), []
    for i in range(len(seen[heads.weights])):
        for query, name in ((heads.query, heads.weights), *heads.also):
            weights = seen[name][i]
            weights = weights.reshape(weights.shape[-3:])  # without the axis of the one image
            maps = _of_block(heads.kind, before + i, query, weights, heads.readers, grid, step)
            if gates is not None and name == heads.weights:
                maps = maps._replace(gates=attention.gates(gates[i]))
            found.append(maps)
    return found


def _of_block(
    kind: str,
    layer: int,
    query: str,
    weights: Float[np.ndarray, "h N N"],
    readers: slice,
    grid: Grid,
    step: tuple[float, float],
) -> HeadMaps:
    """Show the mean over some queries; the distance is of the patches' attention to patches."""
    patches = slice(weights.shape[-1] - grid[0] * grid[1], None)
    maps = _on_grid(weights[:, readers].mean(axis=1), grid)
    among, tokens = weights[None, :, patches, patches], np.arange(grid[0] * grid[1])[None]
    distance = attention.attention_distance(among, tokens, grid, step)
    return HeadMaps(kind, layer, kind, query, maps, distance)


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
            tokens = attention.window_tokens(grid, window, shift)
            edges = [
                attention.window_edges(*axis) for axis in zip(grid, window, shift, strict=True)
            ]
            found.append(
                HeadMaps(
                    "block",
                    len(found),
                    f"stage {stage} block {i}",
                    "received in shifted windows" if any(shift) else "received in windows",
                    attention.received(weights, tokens).reshape(-1, *grid),
                    attention.attention_distance(weights, tokens, grid, (step[0], step[1])),
                    edges=(edges[0], edges[1]),
                )
            )
    return found
