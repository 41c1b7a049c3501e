# SPDX-License-Identifier: Apache-2.0
"""Hide patches from a ViT: replace their embeddings, or leave them out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vit_jax.models.layers.dense import spread


def replace(
    x: Float[Array, "B N D"], mask_token: Float[Array, "1 1 D"], source: Int[Array, "B N"]
) -> Float[Array, "B N D"]:
    """Give patch i the embedding of patch `source[i]`; N stands for the mask token.

    BERT's corruption of images (arXiv:2010.11929 appendix B.1.2), and iBOT's (arXiv:2111.07832).
    """
    batch, _, dim = x.shape
    token = jnp.broadcast_to(spread(mask_token, (batch, 1, dim), x.dtype), (batch, 1, dim))
    return jnp.take_along_axis(jnp.concatenate([x, token], axis=1), source[:, :, None], axis=1)


def keep(
    x: Float[Array, "B M D"], kept: Int[Array, "B K"], num_prefix: int
) -> Float[Array, "B L D"]:
    """Return the prefix tokens and the `kept` patches, in their order (MAE, arXiv:2111.06377)."""
    patches = jnp.take_along_axis(x[:, num_prefix:], kept[:, :, None], axis=1)
    return jnp.concatenate([x[:, :num_prefix], patches], axis=1)


def restore(
    x: Float[Array, "B L D"],
    mask_token: Float[Array, "1 1 D"],
    order: Int[Array, "B N"],
    num_prefix: int,
) -> Float[Array, "B M D"]:
    """Put kept patches back in their places, with the mask token in all others: M = prefix + N.

    `order[i]` is where patch i stands in the sequence of the kept ones and then the others.
    """
    batch, length, dim = x.shape
    hidden = (batch, order.shape[1] - (length - num_prefix), dim)
    tokens = jnp.broadcast_to(spread(mask_token, hidden, x.dtype), hidden)
    patches = jnp.concatenate([x[:, num_prefix:], tokens], axis=1)
    patches = jnp.take_along_axis(patches, order[:, :, None], axis=1)
    return jnp.concatenate([x[:, :num_prefix], patches], axis=1)


def num_kept(count: int, rate: float) -> int:
    """Return how many of `count` patches stay where a share `rate` is dropped: one at least."""
    return max(round(count * (1 - rate)), 1)


def drawn(key: jax.Array, shape: tuple[int, int], rate: float) -> Int[Array, "B K"]:
    """Draw the patches that stay, without order: patch dropout (arXiv:2208.07220).

    `shape` is (B, N). Each image keeps `num_kept` of its own.
    """
    noise = jax.random.uniform(key, shape)
    return jnp.argsort(noise, axis=1)[:, : num_kept(shape[1], rate)]


def shuffled(keys: jax.Array, count: int) -> Int[Array, "B N"]:
    """Return a random order of 0 to `count` - 1 for each of B keys."""
    noise = jax.vmap(lambda key: jax.random.uniform(key, (count,)))(keys)
    return jnp.argsort(noise, axis=1)
