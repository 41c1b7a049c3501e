# SPDX-License-Identifier: Apache-2.0
"""Remove heads and MLP units from a trained ViT: from every layer as many, so that stacks stay.

A head, or a hidden unit of an MLP, is what some rows of the linear layer after it read, its reader:
`attn/proj` or `mlp/fc2`. Without those rows the columns that make it are of no use.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models.base import ModelConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.trees import PyTree

# By a reader's name: [L, n].
Gates = Mapping[str, Array | np.ndarray]
Kept = Mapping[str, Int[np.ndarray, "L k"]]  # likewise, indices in ascending order


class Shares(NamedTuple):
    """Which share of its heads, and of its MLP units, every layer loses: 0 to below 1."""

    heads: float = 0.0
    mlp: float = 0.0


class Counts(NamedTuple):
    """How many heads and MLP units a layer has."""

    heads: int
    mlp: int


# Readers, whose rows are removed, and beside each what makes its input: the axis that it has there.
_READERS: dict[str, tuple[str, dict[str, int]]] = {
    "heads": (r"^blocks/attn/proj/kernel$", {r"/qkv/(kernel|bias)": -1, r"/rope_freqs": -2}),
    "mlp": (r"^blocks/mlp/fc2/kernel$", {r"/fc1(_[gx])?/(kernel|bias)": -1}),
}


def check(cfg: Any) -> None:
    """Raise UserError for a model from which nothing can be removed without further changes."""
    family = models.family(cfg)
    if not family.can_be_pruned:
        raise UserError(f"a {family.name} cannot be pruned: only ViT, DeiT and hybrids can")
    if cfg.mup_base_dim:
        why = "has no rule for heads and MLPs of other widths"
        raise UserError(f"model.mup_base_dim={cfg.mup_base_dim} {why}; prune a run without it")
    if cfg.mlp_norm:
        raise UserError("model.mlp_norm=True normalises all hidden units together; it stays whole")


def counts(cfg: Any) -> Counts:
    """Return how many heads and MLP units each layer of a model has."""
    return Counts(cfg.num_heads, cfg.mlp_dim)


def pruned(cfg: Any, shares: Shares) -> Any:
    """Return the config with the sizes that `shares`, rounded to whole heads and units, leave.

    Raises UserError: a model that `check` refuses, or a share that removes none or all.
    """
    check(cfg)
    left = {}
    for name, share, count in zip(Shares._fields, shares, counts(cfg), strict=True):
        removed = round(share * count)
        what = "heads" if name == "heads" else "MLP units"
        if share and not 0 < removed < count:
            raise UserError(
                f"--{name}={share:g} removes {removed} of {count} {what}; give a share between "
                f"{1 / count:.3g} and {1 - 1 / count:.3g}"
            )
        left[name] = count - removed
    changed = {"mlp_dim": left["mlp"], "num_heads": left["heads"]}
    pools = cfg.pool is Pool.MAP  # which stays whole
    if left["heads"] != cfg.num_heads:
        changed["head_dim"] = cfg.head_dim or cfg.dim // cfg.num_heads
        attends = pools or cfg.pool is Pool.QUERY
        changed |= {"pool_heads": cfg.pool_heads or cfg.num_heads} if attends else {}
    if left["mlp"] != cfg.mlp_dim:
        changed |= {"pool_mlp_dim": cfg.pool_mlp_dim or cfg.mlp_dim} if pools else {}
    return models.with_fields(cfg, changed)


def _kind(name: str) -> str:
    """Return "heads" or "mlp" for the name of a reader, "" for another parameter."""
    return next((kind for kind, (reader, _) in _READERS.items() if re.search(reader, name)), "")


def open_gates(params: PyTree, cfg: Any) -> Gates:
    """Return a gate of 1 for each head and unit, by the name of what reads it."""
    have, gates = counts(cfg)._asdict(), dict[str, Array]()
    for name, leaf in trees.named_leaves(params):
        if kind := _kind(name):
            gates[name] = jnp.ones((*leaf.shape[:-2], have[kind]), jnp.float32)
    return gates


def gated(params: PyTree, gates: Gates) -> PyTree:
    """Multiply each head's and unit's output by its gate, in the weights that read it."""

    def multiply(name: str, leaf: Any) -> Any:
        if name not in gates:
            return leaf
        gate = gates[name]
        rows = leaf.reshape(*gate.shape, -1, leaf.shape[-1])  # [L, n, d or 1, D]
        return (rows * gate[..., None, None]).reshape(leaf.shape)

    return trees.map_named(multiply, params)


def keep(scores: Mapping[str, np.ndarray], cfg: ModelConfig, small: ModelConfig) -> Kept:
    """Choose in each layer those of the highest score, the first of equals, as many as `small` has.

    Args:
        scores: of every head and unit, in the shapes of `open_gates`.
        cfg, small: the model, and of `pruned`.
    """
    left = counts(small)._asdict()
    order = {name: np.argsort(-value, axis=-1, kind="stable") for name, value in scores.items()}
    return {name: np.sort(each[..., : left[_kind(name)]], axis=-1) for name, each in order.items()}


def cut(params: PyTree, kept: Kept, cfg: ModelConfig) -> PyTree:
    """Return the parameters without the heads and units that are not kept; bits do not change."""
    have, sides = counts(cfg)._asdict(), dict[str, tuple[int, str]]()
    names = [name for name, _ in trees.named_leaves(params)]
    for reader in kept:
        module, (_, makers) = reader.rsplit("/", 2)[0], _READERS[_kind(reader)]
        sides[reader] = -2, reader
        for name in names:
            for maker, axis in makers.items():
                if re.fullmatch(module + maker, name):
                    sides[name] = axis, reader

    def taken(name: str, leaf: Any) -> Any:
        if name not in sides:
            return leaf
        axis, reader = sides[name]
        count, layers = have[_kind(reader)], zip(np.asarray(leaf), kept[reader], strict=True)
        return np.stack([_take(layer, index, count, axis) for layer, index in layers])

    return trees.map_named(taken, params)


def _take(value: np.ndarray, index: np.ndarray, count: int, axis: int) -> np.ndarray:
    """Take parts of an axis that consists of `count` equal ones."""
    parts = np.stack(np.split(value, count, axis=axis))
    return np.concatenate(list(parts[index]), axis=axis)


def taylor(
    loss: Any, params: PyTree, gates: Gates, batch: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Return the sum over examples of |activation x gradient| for each head and unit.

    The product, summed over tokens, is the derivative of an example's loss by a gate on the output:
    to first order, what the loss changes by without it. Gates are arXiv:1906.10771's; the absolute
    value and the mean over examples are those of arXiv:1905.10650, which prunes heads.

    Args:
        loss: parameters, batch of one -> losses [1].
        params, gates: of the model, and of `open_gates`.
        batch: arrays [B, ...]; "mask" counts an example or not.
    """

    def one(example: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        single = {key: value[None] for key, value in example.items()}
        slopes = jax.grad(lambda gates: loss(gated(params, gates), single).sum())(gates)
        return {name: jnp.abs(slope) * example["mask"] for name, slope in slopes.items()}

    # One after another: the gates' gradient is made of that of the weights, which is an example's.
    return {name: each.sum(axis=0) for name, each in jax.lax.map(one, dict(batch)).items()}
