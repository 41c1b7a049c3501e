# SPDX-License-Identifier: Apache-2.0
"""What the objectives that hide patches share: their checks, keys for each image, and patches."""

import dataclasses
import functools
from typing import Any

import einops
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt8

from vit_jax import models
from vit_jax.cost.flops import count, train_flops
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.objectives.base import Batch, Objective


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


def image_keys(image: UInt8[Array, "B H W C"]) -> Key[Array, " B"]:
    """Return a key for each image, by its pixels alone.

    An evaluation that draws by it gives the same in batches of any size, on any mesh.
    """
    flat = image.reshape(image.shape[0], -1).astype(jnp.uint32)
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
