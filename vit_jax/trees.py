# SPDX-License-Identifier: Apache-2.0
"""Pytrees by the '/'-joined names of their leaves."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

PyTree = Any

# A parameter below such a component has one leading depth axis (models/layers/block.py).
_STACKED = re.compile(r"(?:^|/)((?:[^/]*_)?blocks)(?:/|$)")


# Joins dict keys, dataclass fields and sequence indices of a key path.
_name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """List (name, leaf) in the order of `jax.tree.leaves`."""
    return [(_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def map_named(fn: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Map `fn(name, leaf, *leaves_of_rest)` over a tree."""
    return jax.tree.map_with_path(lambda path, *leaves: fn(_name(path), *leaves), tree, *rest)


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"params/head/bias": x} into {"params": {"head": {"bias": x}}}."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *path, last = name.split("/")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree


def finite(tree: Any) -> Any:
    """Replace NaN and infinity in dicts and lists by None, as JSON has no numbers for them."""
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def is_stacked(name: str) -> bool:
    """Return whether the leading axis counts layers: a path component is `blocks` or `*_blocks`."""
    return _STACKED.search(name) is not None


def layer_names(name: str, leaf: Any) -> list[str]:
    """List a stacked parameter's layers, `blocks/0/mlp/fc1/kernel` and so on; else [name]."""
    match = _STACKED.search(name)
    if match is None:
        return [name]
    head, tail = name[: match.end(1)], name[match.end(1) :]
    return [f"{head}/{i}{tail}" for i in range(leaf.shape[0])]


def num_params(tree: PyTree) -> int:
    """Return the number of elements of all leaves (arrays or ShapeDtypeStructs)."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: PyTree) -> int:
    """Return the bytes of all leaves (arrays or ShapeDtypeStructs, PRNG keys by their data)."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        total += int(leaf.size) * leaf.dtype.itemsize
    return total
