# SPDX-License-Identifier: Apache-2.0
"""Batch operations on the device, inside the jitted step: normalise, mix, erase, build targets.

They see the global batch, so their result does not depend on how many devices hold it. Random
erasing (arXiv:1708.04896) is timm's "pixel" form.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Key, Num, UInt8, UInt16

from vit_jax.data.config import WHITE, MixConfig, Partner, PixelType, is_on
from vit_jax.errors import UserError

# Share of the image and height over width: timm's ranges, those of DeiT and all after it.
_AREA = (0.02, 1 / 3)
_ASPECT = (0.3, 1 / 0.3)
_TRIES = 10
_ROUNDING = 1e-5  # of two shares, whose sum is 1

Pixels = UInt8[Array, "B H W C"] | UInt16[Array, "B H W C"] | Float32[Array, "B H W C"]
Rows = UInt8[Array, "B L V"] | UInt16[Array, "B L V"] | Float32[Array, "B L V"]


def normalize(
    images: Pixels,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: jnp.dtype | type = jnp.float32,
) -> Float[Array, "B H W C"]:
    """Return (images / white - mean) / std in float32, then cast; mean and std are 1 or C values.

    White is 255, of 16 bits 65535; floats are in their own unit, and white is 1 (`config.WHITE`).
    """
    for name, value in (("mean", mean), ("std", std)):
        if len(value) not in (1, images.shape[-1]):
            raise UserError(
                f"{name}={value!r} has {len(value)} values, the images have {images.shape[-1]} "
                "channels; give one value, or one per channel"
            )
    shift = jnp.asarray(mean, jnp.float32).reshape(1, 1, 1, -1)
    scale = jnp.asarray(std, jnp.float32).reshape(1, 1, 1, -1)
    white = WHITE[PixelType(images.dtype.name)]
    return ((images.astype(jnp.float32) / white - shift) / scale).astype(dtype)


def normalize_rows(
    rows: Rows,
    channels: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Float[Array, "B L V"]:
    """Do what `normalize` does to rows of patches, the channel fastest."""
    pixels = rows.reshape(*rows.shape[:2], -1, channels)
    return normalize(pixels, mean, std).reshape(rows.shape)


def targets(
    labels: Num[Array, " B"] | Num[Array, "B K"], num_classes: int, label_smoothing: float = 0.0
) -> Float32[Array, "B K"]:
    """Turn class ids, or multi-hot rows, into target rows, moving `label_smoothing` to all classes.

    A smoothed row is (1 - s) * row + s / K, as in "Rethinking the Inception Architecture", sec. 7.
    """
    rows = labels if labels.ndim == 2 else jax.nn.one_hot(labels, num_classes)
    rows = rows if known(labels) is None else jnp.maximum(rows, 0)
    return rows.astype(jnp.float32) * (1 - label_smoothing) + label_smoothing / num_classes


def known(labels: Num[Array, " B"] | Num[Array, "B K"]) -> Float32[Array, "B K"] | None:
    """Return 1 where a label is known and 0 where it is -1; None of labels that all are.

    Their type says so: multi-hot rows in which some may not be known are int8, others uint8.
    """
    if labels.ndim != 2 or labels.dtype != jnp.int8:
        return None
    return (labels >= 0).astype(jnp.float32)


def mix_known(
    rng: Key[Array, ""],
    images: Float[Array, "B H W C"],
    rows: Float[Array, "B K"],
    weight: Float[Array, "B K"],
    cfg: MixConfig,
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K"], Float32[Array, "B K"]]:
    """Mix as `mix` does where some targets have `weight` 0, as they are not known.

    What is mixed of anything that is not known is not known.
    """
    images, both = mix(rng, images, jnp.concatenate([rows, weight], axis=-1), cfg)
    rows, weight = jnp.split(both, 2, axis=-1)
    return images, rows, (weight > 1 - _ROUNDING).astype(jnp.float32)


def mix(
    rng: Key[Array, ""], images: Float[Array, "B H W C"], rows: Float[Array, "B K"], cfg: MixConfig
) -> tuple[Float[Array, "B H W C"], Float[Array, "B K"]]:
    """Mix each example with another of the global batch, and its target in the same shares.

    Mixup (arXiv:1710.09412) blends all pixels; cutmix (arXiv:1905.04899) takes a box of the other
    image, and the shares are those of the pixels. It draws for the batch or for each example, as
    `cfg` says. The partner is the other image before it was mixed. big_vision takes it from the
    same device's share of the batch, here it is of the whole.
    """
    if not is_on(cfg):
        return images, rows
    weight, share = weights(rng, images.shape, cfg)

    def blend(x: Array, own: Array) -> Array:
        whole = x.astype(jnp.float32)
        reverse = cfg.partner is Partner.REVERSED
        other = whole[::-1] if reverse else jnp.roll(whole, 1, axis=0)
        return (own * whole + (1 - own) * other).astype(x.dtype)

    return blend(images, weight), blend(rows, share[:, None])


def weights(
    rng: Key[Array, ""], shape: tuple[int, ...], cfg: MixConfig
) -> tuple[Float[Array, "n h w 1"], Float[Array, " n"]]:
    """Draw the weights of an image's own pixels (h = w = 1: of all) and its share; n is 1 or B."""
    batch, height, width, _ = shape
    count = batch if cfg.per_example else 1
    # `rng` itself draws lambda: that uses the first two keys of its split, so they are left out.
    kind_key, box_key, on_key = jax.random.split(rng, 5)[2:]
    cut, alpha = jnp.full(count, cfg.cutmix_alpha > 0), cfg.mixup_alpha or cfg.cutmix_alpha
    if cfg.mixup_alpha and cfg.cutmix_alpha:
        cut = jax.random.bernoulli(kind_key, cfg.switch_prob, (count,))
        alpha = jnp.where(cut, cfg.cutmix_alpha, cfg.mixup_alpha)
    lam = jax.random.beta(rng, alpha, alpha, (count,), jnp.float32)
    share = jnp.maximum(lam, 1 - lam) if cfg.partner is Partner.PREVIOUS else lam
    weight = share[:, None, None, None]
    if cfg.cutmix_alpha:
        box = _box(box_key, lam, height, width)
        weight = jnp.where(cut[:, None, None, None], 1.0 - box, weight)
        share = jnp.where(cut, 1 - box.mean(axis=(1, 2, 3)), share)
    if cfg.prob < 1:
        on = jax.random.bernoulli(on_key, cfg.prob, (count,))
        weight, share = jnp.where(on[:, None, None, None], weight, 1.0), jnp.where(on, share, 1.0)
    return weight, share


def _box(
    rng: Key[Array, ""], lam: Float[Array, " n"], height: int, width: int
) -> Bool[Array, "n H W 1"]:
    """Draw boxes of the image's shape and area 1 - lam, less what sticks out (timm's rand_bbox)."""

    def along(key: Array, size: int) -> Array:
        half = (size * jnp.sqrt(1 - lam)).astype(jnp.int32)[:, None] // 2
        centre = jax.random.randint(key, lam.shape, 0, size)[:, None]
        at = jnp.arange(size)[None]
        return (at >= centre - half) & (at < centre + half)

    y_key, x_key = jax.random.split(rng)
    return along(y_key, height)[:, :, None, None] & along(x_key, width)[:, None, :, None]


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
