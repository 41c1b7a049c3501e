# SPDX-License-Identifier: Apache-2.0
"""Which patches iBOT hides: rectangles at random, as BEiT's (arXiv:2106.08254 algorithm 1)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

_LEAST = 4  # patches of a block
_ASPECT = (0.3, 1 / 0.3)  # height over width of a block
_TRIES = 10  # to place a block


def mask_counts(
    key: Key[Array, ""],
    num_images: int,
    num_patches: int,
    probability: float,
    share: tuple[float, float],
) -> Int[Array, " I"]:
    """Draw how many patches of each image are hidden, as DINOv2 does.

    Of the images the share `probability` is drawn, rounded down. The shares of their patches lie in
    as many equal intervals of `share`, one uniform in each, in random order.
    """
    masked = int(num_images * probability)
    inside, order = jax.random.split(key)
    ends = jnp.linspace(*share, masked + 1)
    shares = ends[:-1] + (ends[1:] - ends[:-1]) * jax.random.uniform(inside, (masked,))
    counts = (num_patches * shares).astype(jnp.int32)
    counts = jnp.pad(counts, (0, num_images - masked))
    return jax.random.permutation(order, counts)


def block_masks(
    key: Key[Array, ""],
    num_images: int,
    grid: tuple[int, int],
    counts: Int[Array, " I"],
) -> Bool[Array, "I N"]:
    """Hide `counts` patches of each image of a grid, in blocks.

    Blocks are laid while there is room for one; what then remains is drawn patch by patch, as in
    DINOv3 (DINOv2 hides that much less). The mask of image i depends on the key and i alone.
    """
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_images))
    return jax.vmap(functools.partial(_one_mask, grid=grid))(keys, counts)


def _one_mask(key: jax.Array, count: jax.Array, *, grid: tuple[int, int]) -> jax.Array:
    rows, columns = grid
    loop_key, rest_key = jax.random.split(key)

    def goes_on(carry: Any) -> jax.Array:
        mask, failures, _ = carry
        return (mask.sum() < count) & (failures < _TRIES)

    def lay(carry: Any) -> Any:
        mask, failures, tries = carry
        left = count - mask.sum()
        block = _block(jax.random.fold_in(loop_key, tries), left, rows, columns)
        new = (block & ~mask).sum()
        fits = (new > 0) & (new <= left)
        return jnp.where(fits, mask | block, mask), jnp.where(fits, 0, failures + 1), tries + 1

    start = (jnp.zeros(grid, bool), 0, 0)
    mask = jax.lax.while_loop(goes_on, lay, start)[0].reshape(-1)
    # The patches of the largest noise complete it; those already hidden are first.
    noise = jax.random.uniform(rest_key, mask.shape) + mask
    rank = jnp.argsort(jnp.argsort(-noise))
    return rank < count


def _block(key: jax.Array, left: jax.Array, rows: int, columns: int) -> jax.Array:
    """Draw a rectangle of up to `left` patches; empty where its sides do not fit into the grid."""
    area, aspect, top, side = jax.random.uniform(key, (4,))
    target = _LEAST + area * jnp.maximum(left - _LEAST, 0)
    low, high = (math.log(end) for end in _ASPECT)
    ratio = jnp.exp(low + aspect * (high - low))
    height = jnp.round(jnp.sqrt(target * ratio)).astype(jnp.int32)
    width = jnp.round(jnp.sqrt(target / ratio)).astype(jnp.int32)
    fits = (height < rows) & (width < columns)
    y = jnp.floor(top * (rows - height + 1)).astype(jnp.int32)
    x = jnp.floor(side * (columns - width + 1)).astype(jnp.int32)
    down, across = jnp.arange(rows)[:, None], jnp.arange(columns)[None]
    inside = (down >= y) & (down < y + height) & (across >= x) & (across < x + width)
    return inside & fits


def gathered(mask: Bool[Array, "I N"], size: int) -> tuple[Int[Array, "I M"], Float[Array, "I M"]]:
    """Return the places of the hidden patches in a buffer of M = `size`, and their weights.

    A weight is 1 over the number of the image's hidden patches, and 0 for padding.
    """
    total = mask.shape[1]
    places = jnp.sort(jnp.where(mask, jnp.arange(total)[None], total), axis=1)[:, :size]
    real = places < total
    weights = real / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    return jnp.where(real, places, 0), weights.astype(jnp.float32)
