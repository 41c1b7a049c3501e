# SPDX-License-Identifier: Apache-2.0
"""Where a parameter of ours lies in another code's file: keys, shapes, the way there and back.

All of it is pure numpy and exact: transposes, permutations and reshapes.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from vit_jax import trees
from vit_jax.models.facts import Rename

Shape = tuple[int, ...]


def renamed(name: str, rules: Iterable[Rename]) -> str:
    """Apply every rule (regex, replacement) that is found in a name, in order."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


class FileTensor(NamedTuple):
    """One tensor of a file that holds one of our parameters, or a part of it."""

    key: str  # its name in the file
    shape: Shape  # its shape there
    layer: int | None = None  # which entry of the depth axis to take, where the file stacks layers


@dataclasses.dataclass(frozen=True)
class Entry:
    """One of our parameters and where a file holds it."""

    name: str  # '/'-joined, with its collection: "params/blocks/attn/qkv/kernel"
    shape: Shape  # ours, of the whole parameter
    stacked: bool  # whether the leading axis of `shape` counts layers
    # For each layer of a stacked parameter (one item otherwise) the parts it is made of.
    layers: tuple[tuple[FileTensor, ...], ...]
    # From the parts of one layer to that layer of ours, and back; None: the format is only read.
    decode: Callable[[Sequence[np.ndarray]], np.ndarray]
    encode: Callable[[np.ndarray], list[np.ndarray]] | None = None


class Own(NamedTuple):
    """What an objective trains beside the model, a decoder or heads."""

    shapes: Any  # of its parameters, by the names that they have beside the model's
    num_heads: int = 1  # of the attention there
    pair: Any = None  # the `TwoTowers` that they and the model are, if they are
    state: Any = MappingProxyType({})  # of its statistics, by collection, as BatchNorm's


def entries(
    variables: Any, place: Callable[[str, Shape, int], tuple[tuple[FileTensor, ...], Any, Any]]
) -> list[Entry]:
    """List every parameter and statistic of a model, or of what is beside it, by their shapes.

    `place` takes the name, the shape and the number of a layer, and returns its parts with what
    `Entry` calls decode and encode.
    """
    found = []
    for full_name, leaf in trees.named_leaves(variables):
        name, stacked = full_name.partition("/")[2], trees.is_stacked(full_name)
        shape: Shape = leaf.shape[1:] if stacked else leaf.shape
        names = enumerate(trees.layer_names(name, leaf))
        layers, decoders, encoders = zip(*(place(n, shape, i) for i, n in names), strict=True)
        found.append(Entry(full_name, leaf.shape, stacked, layers, decoders[0], encoders[0]))
    return found


def flat_patch(size: int, channels: int, patch: tuple[int, int]) -> Shape:
    """Return (channels, P, Q) of flattened patches of `size` numbers; () for another size.

    Channels are the model's, colours or one. A number that is a square's is not taken for another
    shape of patch of as many pixels.
    """
    area = patch[0] * patch[1]
    if patch[0] != patch[1] and math.isqrt(area) ** 2 == area:
        return ()
    return next(((n, *patch) for n in (channels, 3, 1) if n * area == size), ())


class Layout(NamedTuple):
    """A shape in PyTorch's convention with the conversions from and to ours."""

    shape: Shape
    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray]


def pointwise(shape: Shape) -> Layout:
    """[in, out] of ours; a 1x1 convolution (out, in, 1, 1) of PyTorch."""
    return Layout((*shape[::-1], 1, 1), lambda w: w[:, :, 0, 0].T, lambda w: w.T[:, :, None, None])


def fused(shape: Shape, count: int, heads: int) -> Layout:
    """Columns (head, {q,k,v}, d) of ours; rows ({q,k,v}, head, d) of PyTorch's fused projection."""

    def decode(w: np.ndarray) -> np.ndarray:
        w = w.reshape(count, heads, -1, *w.shape[1:]).swapaxes(0, 1)
        return w.reshape(shape[-1], *w.shape[3:]).T

    def encode(w: np.ndarray) -> np.ndarray:
        w = w.T.reshape(heads, count, -1, *w.T.shape[1:]).swapaxes(0, 1)
        return w.reshape(shape[-1], *w.shape[3:])

    return Layout(shape[::-1], decode, encode)


_FUSED = {"qkv": 3, "qk": 2, "kv": 2}


def torch_layout(name: str, shape: Shape, heads: int) -> Layout:
    """Return PyTorch's layout of one layer of a parameter, by its name and rank.

    `heads` is that of the attention the parameter belongs to; elsewhere it has no effect.
    """
    *_, module, kind = ["", *name.split("/")]
    if module in _FUSED:
        return fused(shape, _FUSED[module], heads)
    if kind == "kernel" and len(shape) == 4:  # (height, width, in, out); (out, in, height, width)
        there = (shape[3], shape[2], shape[0], shape[1])
        return Layout(there, lambda w: w.transpose(2, 3, 1, 0), lambda w: w.transpose(3, 2, 0, 1))
    if kind.startswith("pos_embed_") and len(shape) == 4:  # Hiera's tables are maps there
        there = (shape[0], shape[3], shape[1], shape[2])
        return Layout(there, lambda w: w.transpose(0, 2, 3, 1), lambda w: w.transpose(0, 3, 1, 2))
    if kind == "kernel":  # [in, out]; [out, in] of PyTorch's Linear
        return Layout(shape[::-1], np.transpose, np.transpose)
    return Layout(shape, lambda w: w, lambda w: w)
