# SPDX-License-Identifier: Apache-2.0
"""Position tables of Google's .npz files, with or without a row for the class token.

vision_transformer adds its table after prepending the class token, so its first row is the token's;
big_vision adds it before. Adding that row to the token itself, or a row of zeros to the table,
turns one into the other without changing what the model computes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.models import ModelConfig
from vit_jax.weights.layout import Entry, Part, Shape
from vit_jax.weights.sizes import positions

_KEYS = ("Transformer/posembed_input/pos_embedding", "pos_embedding")
_TABLE, _CLASS = "params/pos_embed", "params/cls_token"
_MAX_ROWS = 2**16


def adapted(
    entries: Sequence[Entry], cfg: ModelConfig, shapes: Mapping[str, Shape], prefix: str
) -> list[Entry]:
    """Return the entries with the table under its name in this file, and rows where ours are."""
    found = {entry.name: entry for entry in entries}
    if _TABLE not in found:
        return list(entries)
    table = found[_TABLE]
    prefix_rows, grid = positions(cfg)
    num_patches, dim = grid[0] * grid[1], table.shape[2]
    key = next((prefix + key for key in _KEYS if prefix + key in shapes), prefix + _KEYS[0])
    there = shapes.get(key, ())
    rows = there[1] if len(there) == 3 else 0
    has_row = prefix + "cls" in shapes and has_class_row(rows, num_patches)
    keeps_row = has_row and prefix_rows > 0 and _CLASS in found
    shape = (1, num_patches + has_row, dim)
    found[_TABLE] = dataclasses.replace(
        table,
        layers=((Part(key, shape),),),
        decode=lambda parts: _rows(parts[0], has_row, keeps_row, prefix_rows),
    )
    if has_row and not keeps_row and _CLASS in found:
        token = found[_CLASS]
        fits = there == (1, rows, dim) and rows <= _MAX_ROWS  # whatever its grid
        found[_CLASS] = dataclasses.replace(
            token,
            layers=((*token.layers[0], Part(key, there if fits else shape)),),
            decode=lambda parts: parts[0] + parts[1][:, :1],
        )
    return list(found.values())


def has_class_row(rows: int, num_patches: int) -> bool:
    """Say whether a table of so many rows has one for the class token; Google's grids are square.

    `num_patches` is the model's number: of the same size, the grid need not be square.
    """
    if rows in (num_patches, num_patches + 1):
        return rows == num_patches + 1
    return rows > 1 and math.isqrt(rows) ** 2 != rows and math.isqrt(rows - 1) ** 2 == rows - 1


def _rows(table: np.ndarray, has_row: bool, keeps_row: bool, prefix_rows: int) -> np.ndarray:
    """Return the table with `prefix_rows` rows before the patches': the class token's, or zeros."""
    kept = table[:, :1] if keeps_row else table[:, :0]
    zeros = np.zeros((1, prefix_rows - keeps_row, table.shape[2]), table.dtype)
    return np.concatenate([kept, zeros, table[:, int(has_row) :]], axis=1)
