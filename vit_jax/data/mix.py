# SPDX-License-Identifier: Apache-2.0
"""Batch operations on the device, inside the jitted step: normalise, mix, build targets.

They see the global batch, so their result does not depend on how many devices hold it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Key, Num, UInt8

from vit_jax.errors import UserError


def normalize(
    images: UInt8[Array, "B H W C"],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: jnp.dtype | type = jnp.float32,
) -> Float[Array, "B H W C"]:
    """Return (images / 255 - mean) / std in float32, then cast; mean and std are 1 or C values.

    Raises:
        UserError: another number of values.
    """
    for name, value in (("mean", mean), ("std", std)):
        if len(value) not in (1, images.shape[-1]):
            raise UserError(
                f"{name}={value!r} has {len(value)} values, the images have {images.shape[-1]} "
                "channels; give one value, or one per channel"
            )
    shift = jnp.asarray(mean, jnp.float32).reshape(1, 1, 1, -1)
    scale = jnp.asarray(std, jnp.float32).reshape(1, 1, 1, -1)
    return ((images.astype(jnp.float32) / 255 - shift) / scale).astype(dtype)


def targets(
    labels: Num[Array, " B"] | Num[Array, "B K"], num_classes: int, label_smoothing: float = 0.0
) -> Float32[Array, "B K"]:
    """Turn class ids, or multi-hot rows, into target rows, moving `label_smoothing` to all classes.

    A smoothed row is (1 - s) * row + s / K, as in "Rethinking the Inception Architecture", sec. 7.
    """
    rows = labels if labels.ndim == 2 else jax.nn.one_hot(labels, num_classes)
    return rows.astype(jnp.float32) * (1 - label_smoothing) + label_smoothing / num_classes


def mixup(
    rng: Key[Array, ""],
    images: Float[Array, "B H W C"],
    rows: Float[Array, "B K"],
    alpha: float,
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K"]]:
    """Mix each example with the one before it in the global batch (mixup, arXiv:1710.09412).

    One lambda ~ Beta(alpha, alpha) for the batch, and the larger of it and 1 - lambda for the
    example itself, as big_vision does; but there the partner comes from the same device's share of
    the batch, here from the whole. `alpha` 0 changes nothing.
    """
    if not alpha:
        return images, rows
    weight = jax.random.beta(rng, alpha, alpha, dtype=jnp.float32)
    weight = jnp.maximum(weight, 1 - weight)

    def mix(x: Array) -> Array:
        whole = x.astype(jnp.float32)
        return (weight * whole + (1 - weight) * jnp.roll(whole, 1, axis=0)).astype(x.dtype)

    return mix(images), mix(rows)
