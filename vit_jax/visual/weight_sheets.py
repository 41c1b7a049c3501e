# SPDX-License-Identifier: Apache-2.0
"""What a trained model's weights look like, as contact sheets: `visualize --weights`.

Filters and positions as in figure 7, left and middle, of arXiv:2010.11929.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from vit_jax import models
from vit_jax.figures.contact_sheet import Tile, render, spaced, wrapped, write
from vit_jax.figures.overlay import colors, spread
from vit_jax.inference import Trained
from vit_jax.models.families.convit import relative_positions
from vit_jax.models.layers.posemb import FIXED, sincos2d
from vit_jax.visual import attention

_COMPONENTS, _POSITIONS, _STEM = 28, 7, 64
_ROW = 8  # filters


def write_sheets(trained: Trained, out: Path) -> list[str]:
    """Write patch_filters.png, positions.png, gates.png and relative_bias.png below `out`.

    Returns a line for each: its path, or why it is missing.

    Raises UserError: `out` cannot be made.
    """
    sheets = {
        "patch_filters": _filters(trained),
        "positions": _positions(trained),
        "gates": _gates(trained),
        "relative_bias": _relative_bias(trained),
    }
    return [
        f"no {name}.png: {sheet}"
        if isinstance(sheet, str)
        else write(out, f"{name}.png", render(sheet[0], f"{trained.name}: {sheet[1]}"))
        for name, sheet in sheets.items()
    ]


Sheet = tuple[list[list[Tile]], str] | str


def _filters(trained: Trained) -> Sheet:
    """Show the patch embedding's principal components, or filters of a conv net's stem."""
    params = trained.variables["params"]
    backbone = params.get("backbone", params)
    if "stem" not in backbone:
        kernel = np.asarray(params["patch_embed"]["kernel"])
        filters, shares = principal_filters(kernel, _COMPONENTS)
        captions = [f"{100 * share:.1f} %" for share in shares]
        title = (
            f"principal components of the {kernel.shape[-1]} filters of the patch embedding, with "
            "the variance that each explains"
        )
    else:
        kernel = np.moveaxis(np.asarray(backbone["stem"]["conv"]["kernel"]), -1, 0)
        which = spaced(len(kernel), _STEM)
        filters, captions = kernel[which], [str(i) for i in which]
        title = f"filters of the first convolution, {len(which)} of {len(kernel)}"
    tiles = [Tile(_signed(f), text) for f, text in zip(filters, captions, strict=True)]
    return wrapped(tiles, _ROW), f"{title}; grey is 0"


def _signed(values: Float[np.ndarray, "P Q C"]) -> UInt8[np.ndarray, "P Q C"]:
    """Draw 0 as grey and the largest value, of either sign, as far from it as can be."""
    scale = max(np.abs(values).max(), np.finfo(np.float32).tiny)
    return np.rint(127.5 * (1 + values / scale)).astype(np.uint8)


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
    elif "pos_embed_x" in params:
        grid = models.patch_grid(cfg, trained.image_size)
        x, y = (np.asarray(params[f"pos_embed_{axis}"])[0] for axis in "xy")
        table = np.concatenate([np.tile(x, (grid[0], 1)), y.repeat(grid[1], axis=0)], axis=1)
    else:
        return "the model has no position embedding"
    similar = position_similarity(table, grid)
    light = spread(similar)
    rows = [
        [Tile(colors(light[y, x]), f"row {y}, column {x}") for x in spaced(grid[1], _POSITIONS)]
        for y in spaced(grid[0], _POSITIONS)
    ]
    return rows, f"{title}, from {similar.min():.2f} (black) to 1 (light)"


def _maps(maps: Iterable[np.ndarray], captions: Iterable[str]) -> list[Tile]:
    return [Tile(colors(spread(each)), text) for each, text in zip(maps, captions, strict=True)]


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
        maps = weights[:, centre].reshape(-1, side, side)
        captions = [
            f"layer {i} head {head}\ngate {gate:.2f}\nreach {reach[head]:.1f}"
            for head, gate in enumerate(attention.gates(gating))
        ]
        rows.append(_maps(maps, captions))
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
            maps, name = np.moveaxis(table, -1, 0), f"stage {stage} block {i} head"
            captions = [
                f"{name} {head}\n{bias.min():.1f} to {bias.max():.1f}"
                for head, bias in enumerate(maps)
            ]
            rows.append(_maps(maps, captions))
    return (
        rows,
        "bias of attention to each key of a window by where it lies; the query is in the middle",
    )


class Components(NamedTuple):
    """Principal components of filters, the one that explains most first."""

    filters: Float[np.ndarray, "n P Q C"]  # of unit length; the largest value of each is positive
    shares: Float[np.ndarray, "n"]  # of the variance


def principal_filters(kernel: Float[np.ndarray, "P Q C D"], count: int) -> Components:
    """Return the first principal components of D filters, or all where there are fewer."""
    shape, rows = kernel.shape[:3], np.asarray(kernel, np.float64).reshape(-1, kernel.shape[3]).T
    _, scales, components = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    count = min(count, len(components))
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    components = components * np.sign(largest)[:, None]
    shares = scales**2 / max((scales**2).sum(), np.finfo(np.float64).tiny)
    return Components(components[:count].reshape(count, *shape), shares[:count])


def position_similarity(
    table: Float[np.ndarray, "N D"], grid: tuple[int, int]
) -> Float[np.ndarray, "rows columns rows columns"]:
    """Return the cosine of every position's embedding with every other's, in -1..1.

    `table` has the patches alone, in row-major order of a grid of (rows, columns).
    """
    table = np.asarray(table, np.float64)
    length = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.maximum(length, np.finfo(np.float64).tiny)
    return (unit @ unit.T).reshape(*grid, *grid)
