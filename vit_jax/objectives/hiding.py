# SPDX-License-Identifier: Apache-2.0
"""What objectives that hide patches share: checks, keys for each image, patches and masks.

Masks made of rectangles of patches are BEiT's (arXiv:2106.08254, algorithm 1), as DINOv2 draws
them, on the device and for the global batch.
"""

import dataclasses
import functools
import math
from typing import Any

import einops
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32, Key, Shaped

from vit_jax import models
from vit_jax.cost.flops import count, train_flops
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.layers.posemb import placed
from vit_jax.objectives.base import Batch, Objective

_TRIES = 10  # for each block, in DINOv2's code


def check(model: ModelConfig, objective: str) -> None:
    """Raise UserError for a model whose patches cannot be hidden."""
    if not models.family(model).hides_patches:
        family = type(model).__name__.removesuffix("Config")
        raise UserError(f"{objective} hides patches of a ViT, not of a {family}; choose a ViT")
    plain = {"token_merging": 0, "mup_base_dim": 0, "distilled": False, "patch_drop_rate": 0.0}
    for field, off in plain.items():
        given = getattr(model, field, off)
        if given != off:
            raise UserError(f"model.{field}={given} does not go with {objective}; set {off}")


def check_part(model: ModelConfig, whose: str) -> None:
    """Raise UserError for a model that does not encode a part of the patches; `whose` encoder."""
    for field, off in (("window", 0), ("axial", False)):
        if given := getattr(model, field, off):
            what = f"model.{field}={given} needs the grid of all patches, and {whose}"
            raise UserError(f"{what} encoder sees a part of them; set {off}")
    if without := placed(model):
        raise UserError(
            f"{whose} encoder sees a part of the patches and does not know the "
            f"places of its tokens; set model.{without}"
        )
    if getattr(model, "fc_norm", False):
        raise UserError(
            f"model.fc_norm leaves the tokens of {whose} encoder unnormalised; set it False",
            field="model.fc_norm",
        )


def num_patches(model: ModelConfig) -> int:
    """Return N, the number of patches of an image."""
    rows, columns = models.patch_grid(model, models.input_shape(model)[:2])
    return rows * columns


def counted(model: ModelConfig, share: float, field: str) -> int:
    """Return how many of the patches a share is, rounded down.

    Raises UserError: it is none of them.
    """
    found = int(num_patches(model) * share)
    if not found:
        raise UserError(f"{field}={share} is no patch of {num_patches(model)}; raise it")
    return found


def training_keys(rng: Key[Array, ""], size: int) -> Key[Array, " B"]:
    """Return a key for each place of the global batch."""
    return jax.vmap(functools.partial(jax.random.fold_in, rng))(jnp.arange(size))


def image_keys(image: Shaped[Array, "B H W C"]) -> Key[Array, " B"]:
    """Return a key for each image, by its pixels alone.

    An evaluation that draws by it gives the same in batches of any size, on any mesh.
    """
    is_float = jnp.issubdtype(image.dtype, jnp.floating)
    bits = jax.lax.bitcast_convert_type(image, jnp.uint32) if is_float else image
    flat = bits.reshape(image.shape[0], -1).astype(jnp.uint32)
    odd = 2 * jnp.arange(flat.shape[1], dtype=jnp.uint32) + 1
    sums = (flat * odd[None]).sum(axis=1, dtype=jnp.uint32)
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(0)))(sums)


def patches(image: Float[Array, "B H W C"], model: Any) -> Float[Array, "B N P"]:
    """Cut images into patches in row-major order, their pixels ordered (row, column, channel)."""
    rows, columns = models.pair(model.patch, "patch")
    pattern = "b (y p) (x q) c -> b (y x) (p q c)"
    return einops.rearrange(image, pattern, p=rows, q=columns)


def image_of(patches: Float[Array, "B N P"], model: Any) -> Float[Array, "B H W C"]:
    """Put `patches` together again."""
    p, q = models.pair(model.patch, "patch")
    rows, _ = models.patch_grid(model, models.input_shape(model)[:2])
    pattern = "b (y x) (p q c) -> b (y p) (x q) c"
    return einops.rearrange(patches, pattern, p=p, q=q, y=rows)


def flops(objective: Objective, variables: Any) -> int:
    """Return the model FLOPs of training on one example: three times those of its loss."""
    looped = dataclasses.replace(objective, model=models.looped(objective.model))
    shape = (1, *models.input_shape(objective.model))
    batch: Batch = {"image": jax.ShapeDtypeStruct(shape, jnp.uint8)}  # pyright: ignore
    return train_flops(count(looped.example_losses, variables, batch))


def mask_counts(
    key: Key[Array, ""],
    num_images: int,
    num_patches: int,
    probability: float = 0.5,
    ratio: tuple[float, float] = (0.1, 0.5),
) -> Int32[Array, "{num_images}"]:
    """Draw how many patches to mask in each image, at most int(num_patches * ratio[1]).

    As in DINOv2's code, int(num_images * probability) of the images are masked, the others not. The
    range of ratios is cut into as many equal intervals, each masked image draws from another one,
    and the images are in random order.
    """
    masked = int(num_images * probability)
    ratio_key, order_key = jax.random.split(key)
    edges = jnp.linspace(ratio[0], ratio[1], masked + 1)
    share = edges[:-1] + jax.random.uniform(ratio_key, (masked,)) * (edges[1:] - edges[:-1])
    counts = jnp.minimum((num_patches * share).astype(jnp.int32), int(num_patches * ratio[1]))
    return jax.random.permutation(order_key, jnp.pad(counts, (0, num_images - masked)))


def block_masks(
    key: Key[Array, ""],
    num_images: int,
    grid: tuple[int, int],
    counts: Int32[Array, " B"],
    min_patches: int = 4,
    aspect: tuple[float, float] = (0.3, 1 / 0.3),
) -> Bool[Array, "B N"]:
    """Mask exactly `counts` patches of each image, as many of them as possible in blocks.

    A block's area is uniform between `min_patches` and what remains to be masked, its aspect
    log-uniform, its place uniform; both sides are rounded and must be less than the grid's. It may
    overlap earlier blocks. It is accepted if it masks at least one new patch and not more than
    remain; after 10 refusals in a row no more block is tried. Patches drawn uniformly complete the
    mask, as in DINOv3's code; DINOv2's leaves it smaller.

    The mask of image i depends on `key`, i and its own count alone.

    Args:
        key: of the batch.
        num_images: B.
        grid: rows and columns of patches; N is their product.
        counts: patches to mask in each image, from 0 to N.
        min_patches: the least area that a block aims at.
        aspect: least and greatest height / width.
    """

    def one(image: Array, count: Array) -> Array:
        return _mask(jax.random.fold_in(key, image), count, grid, min_patches, aspect)

    return jax.vmap(one)(jnp.arange(num_images), counts)


def gathered(
    mask: Bool[Array, "B N"], size: int
) -> tuple[Int32[Array, "B {size}"], Float32[Array, "B {size}"]]:
    """Return the positions of each image's masked patches, ascending, and their weights.

    `size`, at most N, is that of the buffer and must hold the largest count. A weight is 1 / (the
    number masked in the image). What fills the buffer has position 0 and weight 0.
    """
    num_patches = mask.shape[1]
    position = jnp.where(mask, jnp.arange(num_patches, dtype=jnp.int32)[None], num_patches)
    index = jnp.sort(position, axis=1)[:, :size]
    taken = index < num_patches
    share = 1 / mask.sum(axis=1, keepdims=True, dtype=jnp.float32)
    return jnp.where(taken, index, 0), jnp.where(taken, share, 0.0)


def _mask(
    key: Key[Array, ""],
    count: Int32[Array, ""],
    grid: tuple[int, int],
    min_patches: int,
    aspect: tuple[float, float],
) -> Bool[Array, " N"]:
    """Mask one image."""

    def goes_on(state: tuple[Array, Array, Array]) -> Array:
        mask, _, refused = state
        return (mask.sum() < count) & (refused < _TRIES)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        mask, tried, refused = state
        remain = count - mask.sum()
        draws = jax.random.uniform(jax.random.fold_in(key, tried), (4,))
        block, fits = _block(draws, remain, grid, min_patches, aspect)
        new = (block & ~mask).sum()
        accepted = fits & (new > 0) & (new <= remain)
        return mask | (block & accepted), tried + 1, jnp.where(accepted, 0, refused + 1)

    # Number 0 is left for the completion.
    start = jnp.zeros(grid, bool), jnp.int32(1), jnp.int32(0)
    mask = jax.lax.while_loop(goes_on, step, start)[0].reshape(-1)
    noise = jax.random.uniform(jax.random.fold_in(key, 0), mask.shape)
    # Masked patches come first; a rank is unique where noise may repeat.
    rank = jnp.argsort(jnp.argsort(jnp.where(mask, -1.0, noise)))
    return rank < count


def _block(
    draws: Float[Array, "4"],
    remain: Int32[Array, ""],
    grid: tuple[int, int],
    min_patches: int,
    aspect: tuple[float, float],
) -> tuple[Bool[Array, "rows columns"], Bool[Array, ""]]:
    """Turn four uniform numbers into a block, and whether its sides are less than the grid's."""
    area = min_patches + draws[0] * (remain - min_patches)
    low, high = math.log(aspect[0]), math.log(aspect[1])
    height_to_width = jnp.exp(low + draws[1] * (high - low))
    height = jnp.round(jnp.sqrt(area * height_to_width)).astype(jnp.int32)
    width = jnp.round(jnp.sqrt(area / height_to_width)).astype(jnp.int32)

    def along(draw: Array, size: Array, total: int) -> Array:
        first = jnp.floor(draw * (total - size + 1)).astype(jnp.int32)
        at = jnp.arange(total)
        return (at >= first) & (at < first + size)

    rows, columns = along(draws[2], height, grid[0]), along(draws[3], width, grid[1])
    return rows[:, None] & columns[None], (height < grid[0]) & (width < grid[1])
