# SPDX-License-Identifier: Apache-2.0
"""Low-rank adaptation (LoRA, arXiv:2106.09685): W + alpha/r A B beside a frozen kernel W.

A lies as `lora_a` [in, r], B as `lora_b` [r, out] beside their `kernel`, stacked over depth as it
is. What is trained and what is frozen are two trees; `Adapter.join` makes one of them.
"""

import contextlib
import dataclasses
import math
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from vit_jax import trees
from vit_jax.errors import UserError, unknown
from vit_jax.models.layers.dense import LORA_A, LORA_B, Dense
from vit_jax.settings import fields
from vit_jax.settings.fields import check_effects, value
from vit_jax.trees import PyTree


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LoraConfig:
    """Which dense layers get A and B; all else is frozen, and is not saved with the run.

    Attributes:
        pattern: regex searched in the names of kernels, "blocks/3/attn/qkv/kernel"; it names all
            layers of a stack or none. "" trains the whole model as usual.
        rank: r.
        alpha: A B counts alpha / r times.
        train: regex of the parameters that are trained as they are, besides A and B.
    """

    pattern: str = ""
    rank: int = value(8, least=1)
    alpha: float = value(8.0, above=0)
    train: str = "^head"

    def check(self) -> None:
        """Raise UserError for settings without effect, or that are no regex."""
        off = "without lora.pattern"
        check_effects(self, "lora.", [(bool(self.pattern), off, "rank", "alpha", "train")])
        for name in ("pattern", "train"):
            fields.regex(f"lora.{name}", getattr(self, name))


@contextlib.contextmanager
def dense_layers() -> Iterator[set[str]]:
    """Collect the names of the dense layers, "blocks/attn/qkv", that are traced meanwhile."""
    found: set[str] = set()

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, Dense) and context.method_name == "__call__":
            found.add("/".join(context.module.path))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        yield found


@dataclasses.dataclass(frozen=True)
class Adapter:
    """The parameters of a run in two trees; leaves are ShapeDtypeStructs.

    Attributes:
        scale: alpha / r.
        trained: A, B and the model's parameters that are trained.
        base: the model's other parameters.
    """

    scale: float
    trained: PyTree
    base: PyTree

    def init(self, params: PyTree, key: jax.Array) -> PyTree:
        """Return initial values of `trained`, of the model's own `params` where it has them.

        B is zero, so the first output is the base's; A is uniform within 1/sqrt(in), as in the
        authors' code (microsoft/LoRA) and by default in peft. Pure.
        """
        own = dict(trees.named_leaves(params))

        def value_of(name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
            if name.endswith(f"/{LORA_B}"):
                return jnp.zeros(leaf.shape, leaf.dtype)
            if not name.endswith(f"/{LORA_A}"):
                return own[name]
            limit = 1 / math.sqrt(leaf.shape[-2])
            named = jax.random.fold_in(key, zlib.crc32(name.encode()) % 2**31)
            return jax.random.uniform(named, leaf.shape, leaf.dtype, -limit, limit)

        return trees.map_named(value_of, self.trained)

    def join(self, trained: PyTree, base: PyTree) -> PyTree:
        """Return the parameters with which the model computes with W + alpha/r A B."""

        def scaled(name: str, leaf: jax.Array) -> jax.Array:
            # Here, on the small factor: a dense layer need not know the scale.
            return leaf * self.scale if name.endswith(f"/{LORA_B}") and self.scale != 1 else leaf

        joined = dict(trees.named_leaves(base))
        joined |= {name: scaled(name, leaf) for name, leaf in trees.named_leaves(trained)}
        return trees.nest(joined)


def adapt(cfg: LoraConfig, params: PyTree, dense: Collection[str]) -> Adapter:
    """Divide parameters (arrays or ShapeDtypeStructs) in what is trained and what is frozen.

    Args:
        cfg: with a pattern.
        params: of the model.
        dense: the names of its dense layers.

    Raises UserError: the pattern finds no kernel, a part of a stack, a kernel of no dense layer, or
    one that is trained as it is.
    """
    leaves = dict(trees.named_leaves(params))
    kernels = {name for name in leaves if name.rpartition("/")[2] == "kernel"}
    what = f"lora.pattern={cfg.pattern!r}"
    adapted = {name for name in kernels if _names(cfg.pattern, name, leaves[name], what)}
    trains = f"lora.train={cfg.train!r}"
    whole = {n for n in leaves if cfg.train and _names(cfg.train, n, leaves[n], trains)}
    _refuse_nothing("kernel in lora.pattern:", cfg.pattern, adapted, kernels, leaves)
    _refuse_nothing("parameter in lora.train:", cfg.train, whole, leaves, leaves)
    wrong = {name: "which is no dense layer's" for name in adapted if _layer(name) not in dense}
    wrong |= dict.fromkeys(adapted & whole, f"as {trains} does")
    if wrong:
        name = min(wrong)
        raise UserError(f"{what} finds {name}, {wrong[name]}; choose another pattern")
    trained = {name: leaves[name] for name in whole}
    for name in adapted:
        *lead, inputs, outputs = leaves[name].shape
        path = _layer(name)
        sides = {LORA_A: (inputs, cfg.rank), LORA_B: (cfg.rank, outputs)}
        for key, shape in sides.items():
            trained[f"{path}/{key}"] = jax.ShapeDtypeStruct((*lead, *shape), jnp.float32)
    base = {name: leaf for name, leaf in leaves.items() if name not in whole}
    return Adapter(cfg.alpha / cfg.rank, trees.nest(trained), trees.nest(base))


def _refuse_nothing(
    what: str, pattern: str, found: Collection[str], among: Collection[str], leaves: PyTree
) -> None:
    if pattern and not found:
        valid = [trees.layer_names(name, leaves[name])[0] for name in sorted(among)]
        raise unknown(what, pattern, valid)


def _layer(name: str) -> str:
    return name.rpartition("/")[0]


def _names(pattern: str, name: str, leaf: Any, what: str) -> bool:
    """Return whether a pattern names a parameter; raises UserError for a part of a stack."""
    regex = fields.regex(what.partition("=")[0], pattern)
    hits = [regex.search(layer) is not None for layer in trees.layer_names(name, leaf)]
    if any(hits) and not all(hits):
        raise UserError(f"{what} names some layers of {name}; name all of a stack, or none")
    return any(hits)


def merged(kernel: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """Return W + scale A B, computed in float64 and rounded once, of one layer or of a stack."""
    added = scale * (a.astype(np.float64) @ b.astype(np.float64))
    # Where nothing is added the bits stay, a minus zero's too.
    return np.where(added == 0, kernel, kernel + added).astype(kernel.dtype)
