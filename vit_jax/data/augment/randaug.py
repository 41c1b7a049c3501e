# SPDX-License-Identifier: Apache-2.0
"""RandAugment (arXiv:1909.13719) as TensorFlow's EfficientNet code and big_vision have it.

AugReg's and Mixer's recipes use it: 16 operations, no identity.

Differs from that code in two places. Contrast blends with the mean grey level;
there it is with H * W / 256, since a histogram's counts are summed without their levels. Solarize
at threshold 256 (magnitude 10) leaves the image alone; there the threshold wraps to 0 in uint8 and
the image is inverted. Blends are rounded, not truncated.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from vit_jax.data.images.ops import Image, Operation, warp
from vit_jax.errors import UserError

FORM = "randaug(OPS,MAGNITUDE) with OPS in 1..16 and MAGNITUDE in 0..30"

_FILL = 128
_LEVELS = np.arange(256)


class RandAugment(NamedTuple):
    """Apply `num_ops` operations, each drawn uniformly (with replacement) from all 16."""

    num_ops: int
    magnitude: float

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        operations = tuple(OPERATIONS.values())
        for _ in range(self.num_ops):
            image = operations[int(rng.integers(len(operations)))](image, self.magnitude, rng)
        return image

    def parts(self) -> dict[str, Operation]:
        return {
            name: lambda image, rng, run=run: run(image, self.magnitude, rng)
            for name, run in OPERATIONS.items()
        }


def read(text: str, fill: tuple[int, ...]) -> RandAugment | None:
    """Read "randaug(2,10)"; None is any other text. Fills with 128, as published, not `fill`."""
    match = re.fullmatch(r"randaug\(\s*(\d+)\s*,\s*(\d+(?:\.\d+)?)\s*\)", text)
    if match is None:
        return None
    if not 1 <= int(match[1]) <= 16:
        raise UserError(f"auto_augment={text!r}: OPS={match[1]} must be in 1..16")
    if float(match[2]) > 30:
        raise UserError(f"auto_augment={text!r}: MAGNITUDE={match[2]} must be in 0..30")
    return RandAugment(int(match[1]), float(match[2]))


def _lookup(image: Image, table: np.ndarray) -> Image:
    """Map every level through a table [256] or, by channel, [256, C], rounded and clipped."""
    levels = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    return cv2.LUT(image, levels.reshape(256, 1, -1)).reshape(image.shape)


def _grey(image: Image) -> np.ndarray:
    """Return the luma (0.299 R + 0.587 G + 0.114 B), [H, W]."""
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.shape[2] == 3 else image[..., 0]


def _blend(degenerate: Image, image: Image, factor: float) -> Image:
    """Return degenerate + factor * (image - degenerate), rounded and clipped to 0..255."""
    return cv2.addWeighted(image, factor, degenerate, 1 - factor, 0).reshape(image.shape)


def _stretched(channel: np.ndarray) -> np.ndarray:
    """Return the table that makes a channel span 0..255; one of a single level stays."""
    low, high, _, _ = cv2.minMaxLoc(channel)
    return (_LEVELS - low) * (255 / (high - low)) if high > low else _LEVELS


def _flattened(channel: np.ndarray) -> np.ndarray:
    """Return the table that flattens a channel's histogram, as Pillow's ImageOps.equalize."""
    counts = np.bincount(channel.ravel(), minlength=256)
    step = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
    below = np.concatenate([[0], counts.cumsum()[:-1]])
    return (below + step // 2) // step if step else _LEVELS


def _by_channel(image: Image, table: Callable[[np.ndarray], np.ndarray]) -> Image:
    tables = [table(image[..., c]) for c in range(image.shape[2])]
    return _lookup(image, np.stack(tables, axis=1))


def _color(image: Image, factor: float) -> Image:
    """Blend with the grey image: 0 has no colour, above 1 has more."""
    if image.shape[2] == 1:
        return image
    return _blend(cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB), image, factor)


def _contrast(image: Image, factor: float) -> Image:
    """Blend with the image's mean grey level."""
    mean = round(cv2.mean(_grey(image))[0])
    return _lookup(image, mean + factor * (_LEVELS - mean))


def _sharpness(image: Image, factor: float) -> Image:
    """Blend with a 3x3 smoothing (1, 5 in the middle, over 13), but for the border."""
    kernel = np.ones((3, 3), np.float32)
    kernel[1, 1] = 5
    smooth = cv2.filter2D(image, -1, kernel / 13).reshape(image.shape)
    out = _blend(smooth, image, factor)
    out[[0, -1]] = image[[0, -1]]
    out[:, [0, -1]] = image[:, [0, -1]]
    return out


def _rotate(image: Image, degrees: float) -> Image:
    """Turn about the centre, counter-clockwise as seen; nearest pixel, filled with 128."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    return warp(image, matrix, fill=_FILL, nearest=True)


def _move(
    image: Image, *, lean_x: float = 0.0, lean_y: float = 0.0, x: float = 0.0, y: float = 0.0
) -> Image:
    """Shear about the top left corner and translate; nearest pixel, filled with 128."""
    matrix = np.array([[1.0, lean_x, x], [lean_y, 1.0, y]])
    return warp(image, matrix, fill=_FILL, nearest=True)


def _cutout(image: Image, half: int, rng: np.random.Generator) -> Image:
    """Grey out a square of side 2 * half around a pixel drawn uniformly, cut off at the border."""
    height, width = image.shape[:2]
    y, x = int(rng.integers(height)), int(rng.integers(width))
    out = image.copy()
    out[max(y - half, 0) : y + half, max(x - half, 0) : x + half] = _FILL
    return out


def _signed(value: float, rng: np.random.Generator) -> float:
    return value if rng.random() < 0.5 else -value


def _map_below(image: Image, threshold: int, below: np.ndarray, others: np.ndarray) -> Image:
    """Map the levels below a threshold by one table, the others by another."""
    return _lookup(image, np.where(threshold > _LEVELS, below, others))


# In the order of TensorFlow's EfficientNet code; m is the magnitude, of which 10 is a full scale.
OPERATIONS: dict[str, Callable[[Image, float, np.random.Generator], Image]] = {
    "AutoContrast": lambda image, m, rng: _by_channel(image, _stretched),
    "Equalize": lambda image, m, rng: _by_channel(image, _flattened),
    "Invert": lambda image, m, rng: cv2.bitwise_not(image).reshape(image.shape),
    "Rotate": lambda image, m, rng: _rotate(image, _signed(30 * m / 10, rng)),
    # At least one bit stays, as TensorFlow's shift has it.
    "Posterize": lambda image, m, rng: _lookup(image, _LEVELS & ~(255 >> max(int(4 * m / 10), 1))),
    "Solarize": lambda image, m, rng: _map_below(image, int(256 * m / 10), _LEVELS, 255 - _LEVELS),
    "Color": lambda image, m, rng: _color(image, 1.8 * m / 10 + 0.1),
    "Contrast": lambda image, m, rng: _contrast(image, 1.8 * m / 10 + 0.1),
    "Brightness": lambda image, m, rng: _lookup(image, (1.8 * m / 10 + 0.1) * _LEVELS),  # to black
    "Sharpness": lambda image, m, rng: _sharpness(image, 1.8 * m / 10 + 0.1),
    "ShearX": lambda image, m, rng: _move(image, lean_x=_signed(0.3 * m / 10, rng)),
    "ShearY": lambda image, m, rng: _move(image, lean_y=_signed(0.3 * m / 10, rng)),
    "TranslateX": lambda image, m, rng: _move(image, x=_signed(100 * m / 10, rng)),
    "TranslateY": lambda image, m, rng: _move(image, y=_signed(100 * m / 10, rng)),
    "Cutout": lambda image, m, rng: _cutout(image, int(40 * m / 10), rng),
    "SolarizeAdd": lambda image, m, rng: _map_below(
        image, 128, _LEVELS + int(110 * m / 10), _LEVELS
    ),
}
