# SPDX-License-Identifier: Apache-2.0
"""Token merging (ToMe, arXiv:2210.09461 section 3): which tokens are alike, and their means.

Tokens after a prefix that stays as it is (class, distillation and register tokens) fall in turns
into two sets. Every token of A finds its most similar one of B; the r most similar pairs become
their means, weighted by how many patches each token stands for: its size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_EXACT = jax.lax.Precision.HIGHEST  # a GPU would round means and near ties to 10 bits


class Matching(NamedTuple):
    """Places within A and B.

    Attributes:
        source: of the tokens of A that merge, the most similar pair first.
        target: where in B each of them goes.
        kept: of the other tokens of A, the most similar to their nearest first.
    """

    source: Int[Array, "B r"]
    target: Int[Array, "B r"]
    kept: Int[Array, "B K"]


def match(a: Float[Array, "B M d"], b: Float[Array, "B N d"], r: int) -> Matching:
    """Find the r most similar pairs, by the cosine, of a token of A and its nearest one of B.

    Several tokens of A may go to one of B. Of equals the first counts.

    Args:
        a: what each token of A is compared by.
        b: likewise of B.
        r: at most M.
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
    """Merge r pairs, or half of the tokens after the prefix where r is more than that.

    The result is in the order of the authors' code, on which the next block's sets depend: prefix,
    what is left of A, B. What is left of A keeps its order where there is a prefix; without one the
    most similar come first.

    Args:
        x: tokens.
        sizes: of each token; None stands for ones.
        keys: what tokens are compared by.
        r: pairs to merge.
        num_prefix: tokens at the start that merge with nothing.

    Returns:
        The tokens and their sizes; what came in where there is nothing to merge.
    """
    r = min(r, (x.shape[1] - num_prefix) // 2)
    if r < 1:
        return x, sizes
    if sizes is None:
        sizes = jnp.ones(x.shape[:2], jnp.float32)
    # Every other token of all, the prefix counted: the first of the sequence would be in A.
    in_a = slice(num_prefix + num_prefix % 2, None, 2)
    in_b = slice(num_prefix + 1 - num_prefix % 2, None, 2)
    source, target, kept = match(keys[:, in_a], keys[:, in_b], r)
    kept = jnp.sort(kept, axis=-1) if num_prefix else kept
    size_a, size_b = sizes[:, in_a], sizes[:, in_b]
    # A product with one-hot rows: adding by index is no faster, and in no fixed order on a GPU.
    moved = jax.nn.one_hot(target, size_b.shape[1], axis=1) * _take(size_a, source)[:, None]
    size_b = size_b + moved.sum(axis=-1)
    total = x[:, in_b].astype(jnp.float32) * sizes[:, in_b][..., None]
    taken = _take(x[:, in_a], source).astype(jnp.float32)
    total += jnp.matmul(moved, taken, precision=_EXACT)
    mean = (total / size_b[..., None]).astype(x.dtype)
    x = jnp.concatenate([x[:, :num_prefix], _take(x[:, in_a], kept), mean], axis=1)
    sizes = jnp.concatenate([sizes[:, :num_prefix], _take(size_a, kept), size_b], axis=1)
    return x, sizes


def _take(x: jax.Array, places: Int[Array, "B K"]) -> jax.Array:
    places = places.reshape(*places.shape, *[1] * (x.ndim - 2))
    return jnp.take_along_axis(x, places, axis=1)


def log_sizes(sizes: Float[Array, "B N"] | None) -> Float[Array, "B 1 1 N"] | None:
    """Return what is added to attention's logits, so that a token counts as its patches would."""
    return None if sizes is None else jnp.log(sizes)[:, None, None]


def mean(x: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None) -> Float[Array, "B D"]:
    """Return the mean over the patches that the tokens stand for, in float32."""
    if sizes is None:
        return x.mean(axis=1, dtype=jnp.float32)
    total = jnp.einsum("bn,bnd->bd", sizes, x.astype(jnp.float32), precision=_EXACT)
    return total / sizes.sum(axis=1, keepdims=True)
