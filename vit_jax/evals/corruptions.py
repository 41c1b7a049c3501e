# SPDX-License-Identifier: Apache-2.0
"""Accuracy on corrupted images: nine corruptions of ImageNet-C and CIFAR-10-C, on uint8 pixels.

Each is what the paper's (arXiv:1903.12261) published code does, with its five severities: those of
ImageNet-C were chosen for crops of 224 pixels, those of CIFAR-10-C for images of 32. Left out are
the ones that need pictures of frost or say little at 32 pixels (glass, zoom, snow, fog, elastic).
Every image is decoded once, and the forward pass compiled once.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from vit_jax import errors
from vit_jax.errors import UserError
from vit_jax.evals.classify import Classify, Predict, Rows, Scores
from vit_jax.evals.passes import Pass

_LIMIT = 85  # between 32 and 224, as often the one as it goes into the other
NUM_SEVERITIES = 5

Pixels = Float[np.ndarray, "H W C"]  # float32 in [0, 1]
Variant = tuple[str, int]  # corruption, severity


def benchmark(size: tuple[int, int]) -> str:
    """Return which severities images of (height, width) get: CIFAR-10-C's or ImageNet-C's."""
    return "CIFAR-10-C" if min(size) < _LIMIT else "ImageNet-C"


def strength(name: str, severity: int, size: tuple[int, int]) -> Any:
    """Return the published parameter of a severity (1..5) for images of a (height, width)."""
    _, small, large = _CORRUPTIONS[name]
    return (large if benchmark(size) == "ImageNet-C" else small)[severity - 1]


def corrupt(
    image: UInt8[np.ndarray, "H W C"], name: str, severity: int, index: int
) -> UInt8[np.ndarray, "H W C"]:
    """Corrupt one image, grey (C = 1) or RGB.

    `image` is what the model would see, `name` one of `NAMES`, `severity` 1..5. What is drawn
    depends on these two and on `index`, the image's number in its dataset, alone.
    """
    seed = zlib.crc32(f"{name} {severity}".encode())
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64)))
    pixels = image.astype(np.float32) / 255
    result = _CORRUPTIONS[name][0](pixels, strength(name, severity, image.shape[:2]), rng)
    # Truncated, not rounded: as published. The nudge keeps a whole level whole in float32.
    return (result.clip(0, 1) * 255 + 1e-3).astype(np.uint8)


def _gaussian_noise(x: Pixels, scale: float, rng: np.random.Generator) -> Pixels:
    return x + np.float32(scale) * rng.standard_normal(x.shape, np.float32)


def _shot_noise(x: Pixels, photons: int, rng: np.random.Generator) -> Pixels:
    return rng.poisson(x * photons).astype(np.float32) / photons


def _impulse_noise(x: Pixels, amount: float, rng: np.random.Generator) -> Pixels:
    """Replace a share of all values, of each channel alone, by 0 or 1, as often the one."""
    draw = rng.random(x.shape, np.float32)
    return np.where(draw < amount, (draw < amount / 2).astype(np.float32), x)


def _defocus_blur(x: Pixels, setting: tuple[Any, Any], rng: np.random.Generator) -> Pixels:
    """Filter by a disk of a radius whose edge a Gaussian has softened; mirrored at the border."""
    radius, softness = setting
    reach = max(8, math.ceil(radius))
    offset = np.arange(-reach, reach + 1)
    disk = (offset[:, None] ** 2 + offset[None, :] ** 2 <= radius**2).astype(np.float32)
    side = 3 if radius <= 8 else 5
    kernel = cv2.GaussianBlur(disk / disk.sum(), (side, side), softness)
    return cv2.filter2D(x, -1, kernel).reshape(x.shape)  # OpenCV drops a single channel


def _motion_blur(x: Pixels, setting: tuple[Any, Any], rng: np.random.Generator) -> Pixels:
    """Average along a line to one side, by half a Gaussian (ImageMagick's motion blur)."""
    radius, sigma = setting
    angle = math.radians(rng.uniform(-45, 45))
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    right = np.ceil(steps * math.cos(angle) - 0.5).astype(int)
    down = np.ceil(steps * math.sin(angle) - 0.5).astype(int)
    reach = 2 * radius
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    np.add.at(kernel, (reach + down, reach + right), weights / weights.sum())
    return cv2.filter2D(x, -1, kernel, borderType=cv2.BORDER_REPLICATE).reshape(x.shape)


def _brightness(x: Pixels, amount: float, rng: np.random.Generator) -> Pixels:
    """Add to the value of hue, saturation and value: the largest channel."""
    value = x.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + np.float32(amount), 1)
    return np.where(value > 0, x * (brighter / np.maximum(value, 1e-6)), brighter)


def _contrast(x: Pixels, factor: float, rng: np.random.Generator) -> Pixels:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * np.float32(factor) + mean


def _pixelate(x: Pixels, share: float, rng: np.random.Generator) -> Pixels:
    from PIL import Image

    image, (height, width) = _to_pillow(x), x.shape[:2]
    small = (max(int(width * share), 1), max(int(height * share), 1))
    image = image.resize(small, Image.Resampling.BOX)
    return _to_pixels(image.resize((width, height), Image.Resampling.BOX), x.shape)


def _jpeg_compression(x: Pixels, quality: int, rng: np.random.Generator) -> Pixels:
    from PIL import Image

    file = io.BytesIO()
    _to_pillow(x).save(file, "JPEG", quality=quality)
    return _to_pixels(Image.open(file), x.shape)


def _to_pillow(x: Pixels) -> Any:
    from PIL import Image

    levels = (x * 255).round().astype(np.uint8)
    return Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)


def _to_pixels(image: Any, shape: tuple[int, ...]) -> Pixels:
    return np.asarray(image).reshape(shape).astype(np.float32) / 255


# What corrupts, and its five severities for CIFAR-10-C and for ImageNet-C.
_CORRUPTIONS: Mapping[str, tuple[Callable[..., Pixels], Sequence[Any], Sequence[Any]]] = {
    "gaussian_noise": (
        _gaussian_noise,
        (0.04, 0.06, 0.08, 0.09, 0.10),
        (0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": (
        _impulse_noise,
        (0.01, 0.02, 0.03, 0.05, 0.07),
        (0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    "defocus_blur": (
        _defocus_blur,
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "motion_blur": (
        _motion_blur,
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}
NAMES = tuple(_CORRUPTIONS)


def variants(names: Sequence[str], severities: Sequence[int]) -> list[Variant]:
    """Return the corruptions of some names, or "all", in some severities, () all of them.

    Raises UserError: an unknown corruption, or a severity that was not published.
    """
    names = NAMES if "all" in names else tuple(dict.fromkeys(names))
    for name in names:
        if name not in NAMES:
            raise errors.unknown("corruption", name, ["all", *NAMES])
    wrong = [each for each in severities if not 1 <= each <= NUM_SEVERITIES]
    if wrong:
        raise UserError(f"severity {wrong[0]} must be in 1..{NUM_SEVERITIES}")
    severities = sorted(set(severities)) or range(1, NUM_SEVERITIES + 1)
    return [(name, severity) for name in names for severity in severities]


def score(
    evaluation: Classify, predict: Predict, variables: Any, variants: Sequence[Variant]
) -> dict[Variant, Scores]:
    """Score the whole split once for each corruption and severity, after its transform.

    Differs from paper: ImageNet-C was saved as JPEG of quality 85 after each corruption.
    """
    by_variant: dict[Variant, list[Rows]] = {variant: [] for variant in variants}
    count = 0

    def take(rows: Rows) -> None:
        nonlocal count
        by_variant[variants[count % len(variants)]].append(rows)
        count += 1

    def corrupted(batch_size: int) -> Pass:
        # NumPy and OpenCV let other threads run while they work.
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "corrupt")
        with pool, contextlib.closing(evaluation.batches(batch_size)) as stream:
            for batch in stream:
                for name, severity in variants:
                    one = functools.partial(_corrupted, name, severity)
                    images = pool.map(one, batch["image"], batch["index"])
                    yield {**batch, "image": np.stack(list(images))}

    dataclasses.replace(evaluation, batches=corrupted).each_batch(predict, variables, take)
    return {variant: evaluation.join(found) for variant, found in by_variant.items()}


def _corrupted(name: str, severity: int, image: np.ndarray, index: Any) -> np.ndarray:
    # Padding has no index; it is thrown away later.
    return corrupt(image, name, severity, int(index)) if index >= 0 else image
