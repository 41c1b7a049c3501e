# SPDX-License-Identifier: Apache-2.0
"""Random erasing (arXiv:1708.04896) on the device, in timm's "pixel" form."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

# Share of the image and height over width: timm's ranges, those of DeiT and all after it.
_AREA = (0.02, 1 / 3)
_ASPECT = (0.3, 1 / 0.3)
_TRIES = 10


def erase(
    rng: Key[Array, ""], images: Float[Array, "B H W C"], prob: float
) -> Float[Array, "B H W C"]:
    """Replace one box of an image by noise N(0, 1), with probability `prob` for each example.

    `images` are normalised already. A box that does not fit is drawn again, up to 10 times.
    """
    box_key, on_key, noise_key = jax.random.split(rng, 3)
    on = jax.random.bernoulli(on_key, prob, (images.shape[0], 1, 1, 1))
    noise = jax.random.normal(noise_key, images.shape, jnp.float32).astype(images.dtype)
    return jnp.where(on & _boxes(box_key, *images.shape[:3]), noise, images)


def _boxes(rng: Key[Array, ""], count: int, height: int, width: int) -> Bool[Array, "B H W 1"]:
    """Draw a box for each example; an empty one where no try fits."""
    area_key, aspect_key, y_key, x_key = jax.random.split(rng, 4)
    tries, (narrow, wide) = (count, _TRIES), _ASPECT
    area = jax.random.uniform(area_key, tries, minval=_AREA[0], maxval=_AREA[1]) * height * width
    aspect = jnp.exp(
        jax.random.uniform(aspect_key, tries, minval=math.log(narrow), maxval=math.log(wide))
    )
    tall = jnp.round(jnp.sqrt(area * aspect)).astype(jnp.int32)
    broad = jnp.round(jnp.sqrt(area / aspect)).astype(jnp.int32)
    fits = (tall < height) & (broad < width)
    first = fits & (jnp.cumsum(fits, axis=1) == 1)

    def along(key: Array, lengths: Array, size: int) -> Array:
        length = jnp.sum(lengths * first, axis=1, keepdims=True)
        start = jax.random.randint(key, (count, 1), 0, size - length + 1)
        at = jnp.arange(size)[None]
        return (at >= start) & (at < start + length)

    rows, columns = along(y_key, tall, height), along(x_key, broad, width)
    return rows[:, :, None, None] & columns[:, None, :, None]
