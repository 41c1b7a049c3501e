# SPDX-License-Identifier: Apache-2.0
"""A heat map over an image."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

# From least to most; lightness rises all the way, so that a grey print keeps the order.
_COLORS = ((0, 0, 4), (60, 15, 110), (150, 38, 103), (222, 73, 64), (251, 155, 6), (252, 255, 164))


def colors(heat: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns 3"]:
    """Colour values from 0 (black) over red to 1 (light yellow); beyond, as at the ends."""
    stops = np.linspace(0, 1, len(_COLORS))
    channels = [np.interp(heat, stops, channel) for channel in zip(*_COLORS, strict=True)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def spread(heat: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Bring the least value to 0 and the greatest to 1; values that are all equal to 0."""
    heat = np.asarray(heat, np.float32)
    low, high = heat.min(), heat.max()
    return (heat - low) / (high - low) if high > low else np.zeros_like(heat)


def overlay(
    image: UInt8[np.ndarray, "H W C"], heat: Float[np.ndarray, "rows columns"]
) -> UInt8[np.ndarray, "H W 3"]:
    """Blend a heat map, brought bilinearly to the image's size, with the image in grey.

    The least value of `heat` is black, the greatest light yellow.
    """
    height, width = image.shape[:2]
    small = Image.fromarray(spread(heat))
    warm = np.asarray(small.resize((width, height), Image.Resampling.BILINEAR))
    grey = image.astype(np.float32).mean(axis=-1, keepdims=True)
    share = (0.4 + 0.4 * warm)[..., None]  # the image shows through, most where the map is cold
    return np.rint((1 - share) * grey + share * colors(warm)).astype(np.uint8)
