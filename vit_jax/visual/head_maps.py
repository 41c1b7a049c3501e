# SPDX-License-Identifier: Apache-2.0
"""Where every head of every layer looks in one image, of any family with attention."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from vit_jax import models
from vit_jax.models import CaiTConfig, ConViTConfig, ModelConfig, SwinConfig, ViTConfig, base
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.window import fit_window
from vit_jax.models.swin import stage_windows
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
    if isinstance(cfg, SwinConfig):
        return _swin(cfg, seen, image_size)
    if not isinstance(cfg, ViTConfig | CaiTConfig | ConViTConfig):
        return []
    grid = models.patch_grid(cfg, image_size)
    step = image_size[0] / grid[0], image_size[1] / grid[1]
    seen = {name: np.asarray(leaf, np.float32) for name, leaf in seen.items()}
    if isinstance(cfg, CaiTConfig):
        return _cait(seen, grid, step)
    if isinstance(cfg, ConViTConfig):
        return _convit(params, seen, grid, step)
    return _vit(cfg, seen, grid, step)


def _vit(cfg: ViTConfig, seen: Seen, grid: Grid, step: tuple[float, float]) -> list[HeadMaps]:
    readers = slice(models.num_prefix(cfg), None)
    query = "mean over all patches"
    if cfg.pool is Pool.CLS:
        readers = slice(2 if cfg.distilled else 1)
        query = "class and distillation token" if cfg.distilled else "class token"
    found = [
        _of_block("block", i, query, weights[0], readers, grid, step)
        for i, weights in enumerate(seen["blocks/attn/weights"])
    ]
    if cfg.pool is Pool.MAP:
        maps = _on_grid(seen["map_pool/weights"][0, :, 0], grid)
        found.append(HeadMaps("pooling", cfg.depth, "pooling", "learned query", maps))
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


def _cait(seen: Seen, grid: Grid, step: tuple[float, float]) -> list[HeadMaps]:
    blocks, reading = seen["blocks/attn/weights"], seen["token_blocks/attn/weights"]
    found = [
        _of_block("block", i, "mean over all patches", weights[0], slice(None), grid, step)
        for i, weights in enumerate(blocks)
    ]
    for i, weights in enumerate(reading):
        maps = _on_grid(weights[0, :, 0], grid)
        kind = "class attention"
        found.append(HeadMaps(kind, len(blocks) + i, kind, "class token", maps))
    return found


def _convit(
    params: Mapping[str, Any], seen: Seen, grid: Grid, step: tuple[float, float]
) -> list[HeadMaps]:
    found = []
    local = seen.get("local_blocks/attn/weights", ())
    centre = grid[0] // 2 * grid[1] + grid[1] // 2
    for i, weights in enumerate(local):
        gates = attention.gates(params["local_blocks"]["attn"]["gating_param"][i])
        for query, part in (
            ("centre patch", weights[0]),
            ("centre patch, by position", seen["local_blocks/attn/position"][i]),
            ("centre patch, by content", seen["local_blocks/attn/content"][i, 0]),
        ):
            reader = slice(centre, centre + 1)
            maps = _of_block("local block", i, query, part, reader, grid, step)
            found.append(maps._replace(gates=gates if query == "centre patch" else None))
    for i, weights in enumerate(seen.get("blocks/attn/weights", ())):
        layer = len(local) + i
        found.append(_of_block("block", layer, "class token", weights[0], slice(1), grid, step))
    return found


def _swin(cfg: SwinConfig, seen: Seen, image_size: Grid) -> list[HeadMaps]:
    """Show what every token gets from all queries: windows have no query of the whole image."""
    found: list[HeadMaps] = []
    grids, windows = attention.stage_grids(cfg, image_size), stage_windows(cfg)
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
