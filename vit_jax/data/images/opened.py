# SPDX-License-Identifier: Apache-2.0
"""An image that Pillow has opened, as pixels: transparent and deep ones, and those to be turned."""

from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.config import AS_SHOWN, Background, Reading
from vit_jax.data.images import header


def pixels(
    image: Image.Image, channels: int, reading: Reading = AS_SHOWN
) -> UInt8[np.ndarray, "H W C"]:
    """Return the pixels of an open image as `decode` has its file's, as far as Pillow kept them.

    Pillow decodes a JPEG itself, which differs by a level at most; colours to grey it rounds.

    Raises ValueError: as `decode`.
    """
    found = flat(image, channels, reading.background)
    return turned(found, header.orientation_of(image) if reading.upright else 1)


def turned(pixels: UInt8[np.ndarray, "H W C"], turn: int) -> UInt8[np.ndarray, "P Q C"]:
    """Bring pixels upright; `turn` is EXIF's number."""
    if turn == 1:
        return pixels
    if turn in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if turn in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def flat(image: Image.Image, channels: int, background: Background) -> UInt8[np.ndarray, "H W C"]:
    """Return the pixels of an open image as they are stored, without transparency.

    Raises ValueError: a broken file, numbers of unknown white.
    """
    mode = "RGB" if channels == 3 else "L"
    try:
        if background is not Background.DROP and image.has_transparency_data:
            layer = _rgba(image)
            ground = Image.new("RGBA", layer.size, background.value)
            pixels = np.asarray(Image.alpha_composite(ground, layer).convert("RGB").convert(mode))
        elif (grey := _deep_grey(image)) is not None:
            pixels = np.repeat(grey[..., None], channels, axis=-1)
        else:
            image = image.convert("RGB") if image.mode == "LAB" else image  # which has no grey
            pixels = np.asarray(image.convert(mode))
    except ValueError:
        raise
    except Exception as error:  # of broken files Pillow's readers raise anything
        raise ValueError(str(error) or type(error).__name__) from error
    return pixels.reshape(*pixels.shape[:2], channels)


# Tags of a TIFF.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0


def _rgba(image: Image.Image) -> Image.Image:
    """Return an image with transparent pixels in mode RGBA, where Pillow alone would err."""
    clear: Any = image.info.get("transparency")
    tiles = getattr(image, "tile", ()) if image.format == "PNG" else ()  # until it is loaded
    # Pillow scales the levels of 2 and 4 bits, but not this one.
    scale = {"L;2": 85, "L;4": 17}.get(tiles[0][3], 1) if tiles else 1
    grey = _deep_grey(image)
    if grey is not None or (image.mode == "L" and isinstance(clear, int)):
        values = np.asarray(image)
        level = Image.fromarray(values if grey is None else grey)
        alpha = Image.fromarray(np.where(values == clear * scale, 0, 255).astype(np.uint8))
        return Image.merge("RGBA", (level, level, level, alpha))
    image = image.convert("LA") if image.mode == "La" else image
    return image.convert("RGBA")


def _deep_grey(image: Image.Image) -> UInt8[np.ndarray, "H W"] | None:
    """Bring grey of more than 8 bits to 8; None where the image has no more than that.

    Pillow's own conversion clips at 255 instead, which leaves white or black. A ValueError where
    the numbers have no range, so that white is undefined.
    """
    # A PGM's values are unsigned, and Pillow brings their white to 65535.
    if not image.mode.startswith("I;16") and (image.mode, image.format) != ("I", "PPM"):
        if image.mode in ("I", "F"):
            raise ValueError(
                f"pixels without a known white (mode {image.mode}); save it as 8-bit PNG"
            )
        return None
    grey = (np.asarray(image) >> (bits(image) - 8)).astype(np.uint8)
    tags = getattr(image, "tag_v2", {})
    return 255 - grey if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else grey


def bits(image: Image.Image) -> int:
    """Return how many bits the grey of an image in mode I or I;16 has."""
    (bits,) = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))
    return bits
