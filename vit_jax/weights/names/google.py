# SPDX-License-Identifier: Apache-2.0
"""Our parameters under the names of Google's .npz files: vision_transformer, big_vision and BiT.

Kernels lie there as here, but for heads: q, k and v are (D, h, d) each, the output projection
(h, d, D). Layouts differ in a prefix, in the numbering of a block's layers (before and since Flax's
Linen), and big_vision may stack all layers of a parameter along a leading axis.

vision_transformer adds its position table after prepending the class token, so its first row is the
token's; big_vision adds it before. Adding that row to the token itself, or a row of zeros to the
table, turns one into the other without changing what the model computes.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.facts import Google
from vit_jax.weights import grids, layout
from vit_jax.weights.layout import Entry, FileTensor, Shape, renamed
from vit_jax.weights.resize import positions

_TABLES = ("Transformer/posembed_input/pos_embedding", "pos_embedding")
_TABLE, _CLASS = "params/pos_embed", "params/cls_token"
_MAX_ROWS = 2**16
# A block's layers were numbered as one sequence before Linen, and by kind since.
_BEFORE_LINEN = (
    (r"/MultiHeadDotProductAttention_0/", "/MultiHeadDotProductAttention_1/"),
    (r"/LayerNorm_1/", "/LayerNorm_2/"),
    (r"/MlpBlock_0/", "/MlpBlock_3/"),
)
# Ours fuse what Google keeps apart.
_FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value"), "q": ("query",)}


def _layout(cfg: ModelConfig) -> Google:
    family = models.family(cfg)
    if family.google is None:
        raise UserError(
            f"there is no .npz layout for {family.name}: Google published ViT, hybrid, Mixer and "
            "BiT; read other files as timm:FILE"
        )
    return family.google


def prefix(cfg: ModelConfig, shapes: Mapping[str, Shape]) -> str:
    """Return what every key of the network begins with in this file; raises what `entries` does."""
    google = _layout(cfg)
    fits = (choice for choice in google.prefixes if choice + google.stem in shapes)
    return next(fits, google.prefixes[0])


def saved(cfg: ModelConfig, shapes: Mapping[str, Shape]) -> ModelConfig | None:
    """Return a model like `cfg` of a file's grid, which is square, as all of Google's are; or None.

    Raises UserError: what `prefix` does.
    """
    start = prefix(cfg, shapes)
    tables = (shapes[start + key] for key in _TABLES if start + key in shapes)
    table = next(tables, ())
    if len(table) != 3 or not hasattr(cfg, "pos_embed"):
        return None
    grid = positions(cfg)[1]
    has_row = start + "cls" in shapes and has_class_row(table[1], grid[0] * grid[1])
    kernel = shapes.get(f"{start}embedding/kernel", ())
    return grids.square(cfg, table[1] - has_row, kernel[:2] if len(kernel) == 4 else ())


def is_ignored(key: str, prefix: str) -> bool:
    """Return whether a key belongs to the optimizer, another tower or the training loop."""
    return not key.startswith(prefix) if prefix else key.startswith(("opt/", "extra/"))


def entries(cfg: Any, shapes: Mapping[str, Shape]) -> list[Entry]:
    """List every parameter of a model with its place in a file of these shapes.

    Raises UserError: a family of which Google has published no such files.
    """
    google, start = _layout(cfg), prefix(cfg, shapes)
    blocks = f"{start}Transformer/encoderblock"
    before_linen = any(key.startswith(blocks) and "/MlpBlock_3/" in key for key in shapes)
    stacks = any(key.startswith(f"{blocks}/") for key in shapes)

    def place(name: str, shape: Shape, layer: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        key, there, number = renamed(name, google.names), _shape(name, shape, cfg, google), None
        if name.startswith("blocks/") and before_linen:
            key = renamed(key, _BEFORE_LINEN)
        if name.startswith("blocks/") and stacks:
            key = re.sub(r"encoderblock_\d+/", "encoderblock/", key)
            there, number = (cfg.depth, *there), layer
        *_, module, _ = ["", *name.split("/")]
        parts = []
        for one in _FUSED.get(module, (module,)):
            part = start + key.replace(f"/{module}/", f"/{one}/")
            # Statistics over an image had its axes once: norms of the hybrids are (1, 1, 1, C).
            whole = (1, 1, 1, *there)
            found = whole if len(there) == 1 and shapes.get(part) == whole else there
            parts.append(FileTensor(part, found, number))
        if len(parts) > 1:  # (..., head, {q,k,v}, d)
            cut = (*there[:-1], len(parts), there[-1])
            return (
                tuple(parts),
                lambda values: np.stack(values, axis=-2).reshape(shape),
                lambda x: list(np.moveaxis(x.reshape(cut), -2, 0)),
            )
        if parts[0].shape == shape:  # not reshaped: it may have another size, and be resized
            return tuple(parts), lambda values: values[0], lambda x: [x]
        return tuple(parts), lambda values: values[0].reshape(shape), lambda x: [x.reshape(there)]

    return _with_positions(layout.entries(models.abstract(cfg), place), cfg, shapes, start)


def state(variables: Mapping[str, Any], cfg: Any, start: str) -> dict[str, np.ndarray]:
    """Return a model's variables as big_vision names them, each key beginning with `start`.

    The class token gets its own row of the position table, which covers the patches alone there.
    """
    leaves = {name: np.asarray(value) for name, value in trees.named_leaves(variables)}
    prefix_rows = positions(cfg)[0] if _TABLE in leaves else 0
    if prefix_rows > 1:
        raise UserError("big_vision's files have no positions of registers or a second token")
    if prefix_rows:
        leaves[_CLASS] = leaves[_CLASS] + leaves[_TABLE][:, :1]
        leaves[_TABLE] = leaves[_TABLE][:, 1:]
    shapes = {f"{start}{_layout(cfg).stem}": (), f"{start}{_TABLES[1]}": ()}
    found = {}
    for entry in entries(cfg, shapes):
        value = leaves[entry.name]
        for parts, layer in zip(entry.layers, value if entry.stacked else [value], strict=True):
            written = entry.encode(layer) if entry.encode else [layer]
            for part, there in zip(parts, written, strict=True):
                found[part.key] = np.ascontiguousarray(there)
    return found


def _shape(name: str, shape: Shape, cfg: Any, google: Google) -> Shape:
    """Return the shape that one layer of a parameter of ours, or a part of it, has in a file."""
    *_, module, kind = ["", *name.split("/")]
    if module in _FUSED:
        return (*shape[:-1], cfg.num_heads, shape[-1] // len(_FUSED[module]) // cfg.num_heads)
    if module == "proj" and kind == "kernel":
        return (cfg.num_heads, shape[0] // cfg.num_heads, shape[1])
    if google.head_is_convolution and module == "head" and kind == "kernel":
        return (1, 1, *shape)
    return shape


def _with_positions(
    entries: Sequence[Entry], cfg: ModelConfig, shapes: Mapping[str, Shape], prefix: str
) -> list[Entry]:
    """Return the entries with the table under its name in this file, and rows where ours are."""
    found = {entry.name: entry for entry in entries}
    if _TABLE not in found:
        return list(entries)
    table = found[_TABLE]
    prefix_rows, grid = positions(cfg)
    num_patches, dim = grid[0] * grid[1], table.shape[2]
    key = next((prefix + key for key in _TABLES if prefix + key in shapes), prefix + _TABLES[0])
    there = shapes.get(key, ())
    rows = there[1] if len(there) == 3 else 0
    has_row = prefix + "cls" in shapes and has_class_row(rows, num_patches)
    keeps_row = has_row and prefix_rows > 0 and _CLASS in found
    shape = (1, num_patches + has_row, dim)
    found[_TABLE] = dataclasses.replace(
        table,
        layers=((FileTensor(key, shape),),),
        decode=lambda parts: _rows(parts[0], has_row, keeps_row, prefix_rows),
    )
    if has_row and not keeps_row and _CLASS in found:
        token = found[_CLASS]
        fits = there == (1, rows, dim) and rows <= _MAX_ROWS  # whatever its grid
        found[_CLASS] = dataclasses.replace(
            token,
            layers=((*token.layers[0], FileTensor(key, there if fits else shape)),),
            decode=lambda parts: parts[0] + parts[1][:, :1],
        )
    return list(found.values())


def has_class_row(rows: int, num_patches: int) -> bool:
    """Return whether a table of so many rows has a class token's; Google's grids are square.

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
