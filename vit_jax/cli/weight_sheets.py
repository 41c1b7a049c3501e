# SPDX-License-Identifier: Apache-2.0
"""What a trained model's weights look like, as contact sheets: `visualize --weights`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from vit_jax import models
from vit_jax.analysis import attention
from vit_jax.analysis.filters import position_similarity, principal_filters
from vit_jax.cli.attention_sheets import spaced, write
from vit_jax.cli.contact_sheet import Tile, render
from vit_jax.inference import Trained
from vit_jax.inference.overlay import colors, spread
from vit_jax.models.convit import relative_positions
from vit_jax.models.layers.posemb import FIXED, sincos2d

_COMPONENTS, _POSITIONS, _STEM = 28, 7, 64
_ROW = 8  # filters


def write_sheets(trained: Trained, out: Path) -> list[str]:
    """Write patch_filters.png, positions.png, gates.png and relative_bias.png below `out`.

    Returns:
        What was written, and what was not and why, a line each.

    Raises:
        UserError: `out` cannot be.
    """
    sheets = {
        "patch_filters": _filters(trained),
        "positions": _positions(trained),
        "gates": _gates(trained),
        "relative_bias": _relative_bias(trained),
    }
    lines = []
    for name, sheet in sheets.items():
        if isinstance(sheet, str):
            lines.append(f"no {name}.png: {sheet}")
        else:
            rows, title = sheet
            lines.append(write(out, f"{name}.png", render(rows, f"{trained.ref}: {title}")))
    return lines


Sheet = tuple[list[list[Tile]], str] | str


def _filters(trained: Trained) -> Sheet:
    """Show the patch embedding's principal components; of a conv net, filters of its stem."""
    params, source = trained.variables["params"], "patch embedding"
    stem = _stem(params)
    if stem is None:
        kernel = np.asarray(params["patch_embed"]["kernel"])
        filters, shares = principal_filters(kernel, _COMPONENTS)
        captions = [f"{100 * share:.1f} %" for share in shares]
        title = (
            f"principal components of the {kernel.shape[-1]} filters of the {source}, with "
            "the variance that each explains"
        )
    else:
        kernel = np.moveaxis(np.asarray(stem), -1, 0)
        which = spaced(len(kernel), _STEM)
        filters, captions = kernel[which], [str(i) for i in which]
        title = f"filters of the first convolution, {len(which)} of {len(kernel)}"
    tiles = [Tile(_signed(f), text) for f, text in zip(filters, captions, strict=True)]
    return _wrapped(tiles, _ROW), f"{title}; grey is 0"


def _stem(params: Mapping[str, Any]) -> Any:
    """Return the kernel of the first convolution, where a network starts with one."""
    params = params.get("backbone", params)
    if "stem" not in params:
        return None
    return params["stem"]["conv"]["kernel"]


def _signed(values: Float[np.ndarray, "P Q C"]) -> UInt8[np.ndarray, "P Q C"]:
    """Draw 0 as grey and the largest value, of either sign, as far from it as can be."""
    scale = max(np.abs(values).max(), np.finfo(np.float32).tiny)
    return np.rint(127.5 * (1 + values / scale)).astype(np.uint8)


def _wrapped(tiles: list[Tile], columns: int) -> list[list[Tile]]:
    return [tiles[i : i + columns] for i in range(0, len(tiles), columns)]


def _positions(trained: Trained) -> Sheet:
    cfg: Any = trained.model
    params = trained.variables["params"]
    title = "cosine of a position's embedding with all others'"
    if getattr(cfg, "pos_embed", None) in FIXED:
        grid = models.patch_grid(cfg, trained.image_size)
        table = sincos2d(*grid, cfg.dim, cfg.pos_embed)
        title = f"{title} (fixed: {cfg.pos_embed})"
    elif "pos_embed" in params:
        grid = models.patch_grid(cfg, trained.image_size)
        table = np.asarray(params["pos_embed"])[0, -grid[0] * grid[1] :]
    else:
        return "the model has no position embedding"
    similar = position_similarity(table, grid)
    light = spread(similar)
    rows = [
        [Tile(colors(light[y, x]), f"row {y}, column {x}") for x in spaced(grid[1], _POSITIONS)]
        for y in spaced(grid[0], _POSITIONS)
    ]
    return rows, f"{title}, from {similar.min():.2f} (black) to 1 (light)"


def _gates(trained: Trained) -> Sheet:
    params = trained.variables["params"]
    if "local_blocks" not in params:
        return "the model has no gated positional attention (ConViT's)"
    attn = params["local_blocks"]["attn"]
    side = models.patch_grid(trained.model, trained.image_size)[0]
    offsets = np.asarray(relative_positions(side))
    centre, tokens = side // 2 * side + side // 2, np.arange(side * side)[None]
    rows = []
    for i, gating in enumerate(attn["gating_param"]):
        logits = offsets @ attn["pos_proj"]["kernel"][i] + attn["pos_proj"]["bias"][i]
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights = np.moveaxis(weights / weights.sum(axis=1, keepdims=True), -1, 0)
        reach = attention.attention_distance(weights[None], tokens, (side, side), (1.0, 1.0))
        rows.append(
            [
                Tile(
                    colors(spread(weights[head, centre].reshape(side, side))),
                    f"layer {i} head {head}\ngate {gate:.2f}\nreach {reach[head]:.1f}",
                )
                for head, gate in enumerate(attention.gates(gating))
            ]
        )
    return rows, (
        "attention of the centre patch by position alone; gate: its share of all attention; "
        "reach: its mean distance, in patches"
    )


def _relative_bias(trained: Trained) -> Sheet:
    cfg: Any = trained.model
    windows = models.family(cfg).windows
    if windows is None:
        return "the model has no relative position bias (Swin's)"
    rows = []
    for stage, depth in enumerate(cfg.depths):
        shape = [2 * side - 1 for side in windows(cfg)[stage]]
        for i in range(depth):
            block = trained.variables["params"][f"stage{stage}"][f"block{i}"]
            # The table is of offsets query - key; turned round, it shows where the keys lie.
            table = np.asarray(block["attn"]["rel_pos_bias"]).reshape(*shape, -1)[::-1, ::-1]
            rows.append(
                [
                    Tile(
                        colors(spread(table[..., head])),
                        f"stage {stage} block {i} head {head}\n"
                        f"{table[..., head].min():.1f} to {table[..., head].max():.1f}",
                    )
                    for head in range(table.shape[-1])
                ]
            )
    return (
        rows,
        "bias of attention to each key of a window by where it lies; the query is in the middle",
    )
