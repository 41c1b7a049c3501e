# SPDX-License-Identifier: Apache-2.0
"""Token merging (ToMe, arXiv:2210.09461 section 3): which tokens are alike, means, blocks.

A prefix (class, distillation and register tokens) never merges; the other tokens alternate between
two sets. Every token of A finds its most similar one of B; the r most similar pairs become their
means, weighted by size, the number of patches that a token stands for. The blocks have the plain
stack's parameters; each sees fewer tokens than the one before, so a loop applies each layer's slice
instead of a scan.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models.base import CAPTURED, Remat
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.layers.block import Block, SelfAttention, remat
from vit_jax.models.layers.drop import Dropout

_EXACT = jax.lax.Precision.HIGHEST  # a GPU would round means and near ties to 10 bits


class Matching(NamedTuple):
    """Indices within A and B, the most similar pairs first."""

    source: Int[Array, "B r"]  # of the tokens of A that merge
    target: Int[Array, "B r"]  # of the token of B that each merges into
    kept: Int[Array, "B K"]  # of the other tokens of A


def match(a: Float[Array, "B M d"], b: Float[Array, "B N d"], r: int) -> Matching:
    """Match r <= M tokens of A with their nearest of B, by the cosine of their keys `a` and `b`.

    Several tokens of A may match one of B. The first of equals wins.
    """
    similarity = jnp.matmul(_unit(a), _unit(b).swapaxes(-1, -2), precision=_EXACT)
    order = jnp.argsort(similarity.max(axis=-1), axis=-1, descending=True)
    source = order[:, :r]
    target = jnp.take_along_axis(similarity.argmax(axis=-1), source, axis=1)
    return Matching(source, target, order[:, r:])


def _unit(x: Float[Array, "B N d"]) -> Float[Array, "B N d"]:
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-12)


def merge(
    x: Float[Array, "B N D"],
    sizes: Float[Array, "B N"] | None,
    keys: Float[Array, "B N d"],
    r: int,
    num_prefix: int,
) -> tuple[Float[Array, "B M D"], Float[Array, "B M"] | None]:
    """Merge r pairs, at most half of the tokens after the prefix; return tokens and sizes.

    The result is in the order of the authors' code, on which the next block's sets depend: prefix,
    the rest of A, B. The rest of A keeps its order after a prefix; without one its most similar
    tokens come first. With nothing to merge, the arguments return unchanged.

    Args:
        x: tokens.
        sizes: of each token; None stands for ones.
        keys: by which tokens are compared.
        r: pairs to merge.
        num_prefix: tokens at the start that never merge.
    """
    r = min(r, (x.shape[1] - num_prefix) // 2)
    if r < 1:
        return x, sizes
    if sizes is None:
        sizes = jnp.ones(x.shape[:2], jnp.float32)
    # Alternate over the whole sequence, the prefix included: its first token would be in A.
    in_a = slice(num_prefix + num_prefix % 2, None, 2)
    in_b = slice(num_prefix + 1 - num_prefix % 2, None, 2)
    source, target, kept = match(keys[:, in_a], keys[:, in_b], r)
    kept = jnp.sort(kept, axis=-1) if num_prefix else kept
    size_a, size_b = sizes[:, in_a], sizes[:, in_b]
    # A product with one-hot rows: a scatter is no faster, and adds in no fixed order on a GPU.
    moved = jax.nn.one_hot(target, size_b.shape[1], axis=1) * _take(size_a, source)[:, None]
    size_b = size_b + moved.sum(axis=-1)
    total = x[:, in_b].astype(jnp.float32) * sizes[:, in_b][..., None]
    taken = _take(x[:, in_a], source).astype(jnp.float32)
    total += jnp.matmul(moved, taken, precision=_EXACT)
    mean = (total / size_b[..., None]).astype(x.dtype)
    x = jnp.concatenate([x[:, :num_prefix], _take(x[:, in_a], kept), mean], axis=1)
    sizes = jnp.concatenate([sizes[:, :num_prefix], _take(size_a, kept), size_b], axis=1)
    return x, sizes


def _take(x: jax.Array, index: Int[Array, "B K"]) -> jax.Array:
    return jnp.take_along_axis(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)


def log_sizes(sizes: Float[Array, "B N"] | None) -> Float[Array, "B 1 1 N"] | None:
    """Return the bias of attention's logits by which a token counts as its patches would."""
    return None if sizes is None else jnp.log(sizes)[:, None, None]


def mean(x: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None) -> Float[Array, "B D"]:
    """Return the mean over the patches that the tokens stand for, in float32."""
    if sizes is None:
        return x.mean(axis=1, dtype=jnp.float32)
    total = jnp.einsum("bn,bnd->bd", sizes, x.astype(jnp.float32), precision=_EXACT)
    return total / sizes.sum(axis=1, keepdims=True)


def check_merging(r: int, num_patches: int, impl: AttentionImpl) -> None:
    """Raise a UserError for a number that the first block cannot merge or a kernel without bias."""
    if not 0 <= r <= num_patches // 2:
        raise UserError(
            f"model.token_merging={r} must be 0 (off) to {num_patches // 2}, half of the "
            f"{num_patches} patches"
        )
    if r and impl in (AttentionImpl.CUDNN, AttentionImpl.PALLAS):
        raise UserError(
            f"model.attention={impl} cannot weigh merged tokens (model.token_merging) by their "
            "sizes; choose auto"
        )


class MergingAttention(SelfAttention):
    """Self-attention in which a token counts as its patches would (equation 1)."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N d"]]:
        """Return the output of `SelfAttention`, and the keys' mean over the heads."""
        q, k, v = self._heads(x)
        return self._attend(q, k, v, x.shape[-1], log_sizes(sizes)), k.mean(axis=1)


class MergingBlock(Block):
    """The ViT's block that merges `merged` pairs of tokens after its attention."""

    merged: int
    num_prefix: int

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N D"],
        drop_path_rate: Float[Array, ""],
        sizes: Float[Array, "B N"] | None,
    ) -> tuple[Float[Array, "B M D"], Float[Array, "B M"] | None]:
        cfg = self.cfg
        y = cfg.make_norm("norm1")(x)
        y, keys = MergingAttention(cfg, self.train, name="attn")(y, sizes)
        y = Dropout(cfg.dropout_rate, deterministic=not self.train)(y)
        x = x + self._branch(y, drop_path_rate, "ls1")
        x, sizes = merge(x, sizes, keys, self.merged, self.num_prefix)
        x = self._add_mlp(x, drop_path_rate)
        return constrain(x, BATCH_AXES), sizes


def merging_stack(
    model: nn.Module,
    x: Float[Array, "B N D"],
    rates: Float[Array, "L"],
    policy: Remat,
    fields: Mapping[str, Any],
) -> tuple[Float[Array, "B M D"], Float[Array, "B M"] | None]:
    """Apply the stacked parameters "blocks" of a bound model; return the last tokens and sizes.

    Args:
        model: has the parameters and the dropout key.
        x: tokens.
        rates: of stochastic depth, for each block.
        policy: what the backward pass keeps.
        fields: of every `MergingBlock`.

    Raises UserError: attention weights are captured; they differ in size by layer.
    """
    if model.is_mutable_collection(CAPTURED):
        raise UserError(
            "attention weights of merged tokens belong to no patches; look at the model with "
            "model.token_merging=0"
        )
    block = remat(MergingBlock, policy)(**fields)
    params = model.variables["params"]["blocks"]
    key = model.make_rng("dropout") if fields["train"] and model.has_rng("dropout") else None
    sizes: jax.Array | None = None
    for i in range(rates.shape[0]):
        rngs = {} if key is None else {"dropout": jax.random.fold_in(key, i)}
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], params)
        done = block.apply({"params": layer}, x, rates[i], sizes, rngs=rngs)
        x, sizes = cast(tuple[jax.Array, jax.Array | None], done)
    return x, sizes
