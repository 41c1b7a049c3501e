# SPDX-License-Identifier: Apache-2.0
"""Supervised learning from images of their own shapes, one or several to a row (docs/naflex.md)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.cost.flops import count, train_flops
from vit_jax.data import GRIDS, DataConfig, normalize_rows
from vit_jax.data.augment import mix
from vit_jax.data.config import Partner, is_on
from vit_jax.data.stream.native import batch_shapes
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig

Rows = Mapping[str, jax.Array]


def image(batch: Rows, model: ModelConfig, data: DataConfig) -> Float[Array, "B L V"]:
    """Return the normalised patches of a batch from the data; those of padding mean nothing."""
    return normalize_rows(batch["image"], model.channels, data.mean, data.std)


def prepare(
    batch: Rows, rng: jax.Array, model: ModelConfig, data: DataConfig, label_smoothing: float
) -> dict[str, jax.Array]:
    """Normalise, build the targets, [B, K] or of S images a row [B, S, K], and mix one-image rows.

    The batch's other arrays pass through.
    """
    pixels, label, grids = image(batch, model, data), batch["label"], batch[GRIDS]
    lead = grids.shape[:-1]
    flat = label.reshape(-1, *label.shape[len(lead) :])
    if mix.known(flat) is not None:
        what = "labels that are not known (?) are of images of one size"
        raise UserError(f"{what}; set data.transform.crop=random_resized")
    rows = mix.targets(flat, model.num_classes, label_smoothing)
    if is_on(data.mix):
        pixels, rows = mixed(rng, pixels, grids, rows, data)
    rest = {key: value for key, value in batch.items() if key not in ("image", "label")}
    return {**rest, "image": pixels, "targets": rows.reshape(*lead, -1)}


def mixed(
    rng: jax.Array, pixels: jax.Array, grids: jax.Array, rows: jax.Array, data: DataConfig
) -> tuple[Float[Array, "B L V"], Float[Array, "B K"]]:
    """Blend each image with another where both have patches, from their top left corners.

    Mixup as `mix.mix` draws it; the share of the target is the other's in all patches, as in timm's
    for NaFlex.
    """
    reverse = data.mix.partner is Partner.REVERSED

    def partner(x: jax.Array) -> jax.Array:
        return x[::-1] if reverse else jnp.roll(x, 1, axis=0)

    length = pixels.shape[1]
    weight, _ = mix.weights(rng, (len(pixels), 1, 1, 1), data.mix)
    own = jnp.broadcast_to(weight.reshape(-1, 1), (len(pixels), 1))
    theirs, columns = partner(grids), jnp.maximum(grids[:, 1:], 1)
    index = jnp.arange(length)[None]
    y, x = index // columns, index % columns
    both = (index < grids.prod(axis=-1)[:, None]) & (y < theirs[:, :1]) & (x < theirs[:, 1:])
    where = jnp.clip(y * theirs[:, 1:] + x, 0, length - 1)
    other = jnp.take_along_axis(partner(pixels), where[..., None], axis=1)
    blend = jnp.where(both, 1 - own, 0.0)
    pixels = (1 - blend[..., None]) * pixels + blend[..., None] * other
    share = blend.sum(axis=1, keepdims=True) / jnp.maximum(grids.prod(axis=-1)[:, None], 1)
    return pixels, (1 - share) * rows + share * partner(rows)


def mean_over_images(
    values: Float[Array, " n"], grids: jax.Array, data: DataConfig
) -> Float[Array, ""]:
    """Return the mean over the images of a (micro-)batch, of values of each or of each of S a row.

    Packed rows hold unlike numbers of images: the sum is divided by the mean of all rows, so that
    the mean over micro-batches is that over the batch, as of images in rows of their own.
    """
    if grids.ndim == 2:
        return values.mean()
    there = (grids.prod(axis=-1) > 0).reshape(-1)
    return jnp.where(there, values, 0.0).sum() / (len(grids) * data.batch_size / data.pack)


def fill(batch: Rows) -> Float[Array, ""]:
    """Return the share of the batch's patches that are an image's and no padding."""
    rows, length = batch["image"].shape[:2]
    return batch[GRIDS].prod(axis=-1).sum().astype(jnp.float32) / (rows * length)


def flops(module: Any, objective: Any, variables: Any) -> int:
    """Return the model FLOPs of training on one image, the mean over lengths, padding included."""
    data, found = objective.data, []
    shapes = batch_shapes(data, objective.views, {})
    for length in data.transform.lengths:
        row = (1, length, shapes["image"][0][-1])
        x = jax.ShapeDtypeStruct(row, jnp.float32)
        grids = jax.ShapeDtypeStruct((1, *shapes[GRIDS][0][1:]), jnp.int32)
        forward = count(
            lambda v, x, g: module.apply(v, x, grids=g, train=False), variables, x, grids
        )
        found.append(train_flops(forward))
    mean = sum(found) // len(found)
    return mean * data.pack // data.batch_size if data.pack else mean
