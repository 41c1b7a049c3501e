# SPDX-License-Identifier: Apache-2.0
"""Masks as pictures: a colour for each class, laid over the image."""

import colorsys
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Num, UInt8

from vit_jax.figures.plots import COLOURS

NONE = 255  # the last colour of a palette: of no class
_WHITE = (255, 255, 255)
_SHARE = 0.55  # of a colour over an image


def palette(count: int) -> UInt8[np.ndarray, "256 3"]:
    """Return a colour for each class id, white for what is ignored.

    The first seven stay apart for every kind of colour vision; later hues are spread evenly.
    """
    found = np.full((NONE + 1, 3), _WHITE, np.uint8)
    for k in range(min(count, NONE)):
        found[k] = colour(k)
    return found


def colour(k: int) -> tuple[int, int, int]:
    """Return the colour of a class or of an object, by its number."""
    if k < len(COLOURS):
        red, green, blue = (int(COLOURS[k][i : i + 2], 16) for i in (1, 3, 5))
        return red, green, blue
    hue, level = k * 0.618034 % 1, 0.55 + 0.4 * (k % 2)
    red, green, blue = (round(255 * x) for x in colorsys.hsv_to_rgb(hue, 0.65, level))
    return red, green, blue


def over(
    image: Num[np.ndarray, "H W C"],
    numbers: Int[np.ndarray, "H W"],
    colours: Sequence[tuple[int, int, int]] = (),
) -> UInt8[np.ndarray, "H W 3"]:
    """Lay areas over an image: each number from 0 in its colour, with a dark edge.

    `colours` are by number; without any, `colour` has them. Below 0 the image is as it was.
    """
    base = as_rgb(image).astype(np.float32)
    inside = numbers >= 0
    count = int(numbers.max(initial=-1)) + 1
    table = np.array([*(colours or map(colour, range(count))), (0, 0, 0)], np.float32)
    base[inside] = (1 - _SHARE) * base[inside] + _SHARE * table[numbers[inside]]
    edge = np.zeros(numbers.shape, bool)
    edge[:, 1:] |= numbers[:, 1:] != numbers[:, :-1]
    edge[1:] |= numbers[1:] != numbers[:-1]
    base[edge] *= 0.4
    return np.rint(base).astype(np.uint8)


def framed(
    image: UInt8[np.ndarray, "H W 3"],
    boxes: Num[np.ndarray, "n 4"],
    colours: Sequence[tuple[int, int, int]],
) -> UInt8[np.ndarray, "H W 3"]:
    """Draw boxes (left, top, right, bottom) over an image, two pixels wide."""
    found = image.copy()
    height, width = image.shape[:2]
    for box, own in zip(boxes, colours, strict=True):
        left, top, right, bottom = np.rint(box).astype(int)
        left, right = np.clip((left, right - 1), 0, width - 1)
        top, bottom = np.clip((top, bottom - 1), 0, height - 1)
        for place in (top, min(top + 1, bottom)), (max(bottom - 1, top), bottom):
            found[list(place), left : right + 1] = own
        for place in (left, min(left + 1, right)), (max(right - 1, left), right):
            found[top : bottom + 1, list(place)] = own
    return found


def as_rgb(image: Num[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W 3"]:
    """Return an image for the eye: grey and the first bands of others as three channels."""
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = np.rint((image - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    return image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)
