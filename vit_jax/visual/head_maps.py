# SPDX-License-Identifier: Apache-2.0
"""Where every head of every layer looks in one image, of any family with attention."""

from collections.abc import Callable, Mapping
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
        cfg: the model's config.
        params: its parameters.
        seen: as recorded for a batch of one.
        image_size: (H, W).
    """
    if isinstance(cfg, SwinConfig):
        return _swin(cfg, seen, image_size)
    if not isinstance(cfg, ViTConfig | CaiTConfig | ConViTConfig):
        return []
    grid = models.patch_grid(cfg, image_size)
    size, step = grid[0] * grid[1], (image_size[0] / grid[0], image_size[1] / grid[1])
    seen = {name: np.asarray(leaf, np.float32) for name, leaf in seen.items()}

    def on_grid(rows: Float[np.ndarray, "h N"]) -> Float[np.ndarray, "h rows columns"]:
        return rows[:, -size:].reshape(-1, *grid)  # without what comes before the patches

    def block(
        layer: int,
        query: str,
        weights: Float[np.ndarray, "h N N"],
        readers: slice,
        kind: str = "block",
        gates: Float[np.ndarray, "h"] | None = None,
    ) -> HeadMaps:
        """Show the mean over some queries; the distance is that of patches to patches."""
        among, tokens = weights[None, :, -size:, -size:], np.arange(size)[None]
        distance = attention.attention_distance(among, tokens, grid, step)
        maps = on_grid(weights[:, readers].mean(axis=1))
        return HeadMaps(kind, layer, kind, query, maps, distance, gates)

    if isinstance(cfg, ConViTConfig):
        return _convit(params, seen, grid[0] // 2 * grid[1] + grid[1] // 2, block)
    readers, query = slice(models.num_prefix(cfg), None), "mean over all patches"
    if isinstance(cfg, ViTConfig) and cfg.pool is Pool.CLS:
        readers = slice(2 if cfg.distilled else 1)
        query = "class and distillation token" if cfg.distilled else "class token"
    found = [
        block(i, query, weights[0], readers)
        for i, weights in enumerate(seen["blocks/attn/weights"])
    ]
    if isinstance(cfg, CaiTConfig):
        kind = "class attention"
        for weights in seen["token_blocks/attn/weights"]:
            maps = on_grid(weights[0, :, 0])
            found.append(HeadMaps(kind, len(found), kind, "class token", maps))
    elif cfg.pool is Pool.MAP:
        maps = on_grid(seen["map_pool/weights"][0, :, 0])
        found.append(HeadMaps("pooling", cfg.depth, "pooling", "learned query", maps))
    return found


def _convit(
    params: Mapping[str, Any], seen: Seen, centre: int, block: Callable[..., HeadMaps]
) -> list[HeadMaps]:
    found, local = [], seen.get("local_blocks/attn/weights", ())
    for i, weights in enumerate(local):
        gates = attention.gates(params["local_blocks"]["attn"]["gating_param"][i])
        for query, part, shown in (
            ("centre patch", weights[0], gates),
            ("centre patch, by position", seen["local_blocks/attn/position"][i], None),
            ("centre patch, by content", seen["local_blocks/attn/content"][i, 0], None),
        ):
            reader = slice(centre, centre + 1)
            found.append(block(i, query, part, reader, "local block", shown))
    for i, weights in enumerate(seen.get("blocks/attn/weights", ())):
        found.append(block(len(local) + i, "class token", weights[0], slice(1)))
    return found


def _swin(cfg: SwinConfig, seen: Seen, image_size: Grid) -> list[HeadMaps]:
    """Show what every token gets from all queries: windows have no query of the whole image."""
    found: list[HeadMaps] = []
    grids, windows = attention.stage_grids(cfg, image_size), stage_windows(cfg)
    patch = base.pair(cfg.patch, "patch")
    for stage, depth in enumerate(cfg.depths):
        grid, step = grids[stage], (patch[0] * 2.0**stage, patch[1] * 2.0**stage)
        for i in range(depth):
            window, shift = fit_window(grid, windows[stage], shifted=i % 2 == 1)
            weights = np.asarray(seen[f"stage{stage}/block{i}/attn/weights"][0], np.float32)
            tokens = attention.window_tokens(grid, window, shift)
            rows, columns = map(attention.window_edges, grid, window, shift)
            found.append(
                HeadMaps(
                    "block",
                    len(found),
                    f"stage {stage} block {i}",
                    "received in shifted windows" if any(shift) else "received in windows",
                    attention.received(weights, tokens).reshape(-1, *grid),
                    attention.attention_distance(weights, tokens, grid, step),
                    edges=(rows, columns),
                )
            )
    return found
