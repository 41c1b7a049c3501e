# SPDX-License-Identifier: Apache-2.0
"""Encoded JPEG, PNG or WebP bytes to uint8 pixels, for training, evaluation and prediction alike.

JPEG goes through libjpeg-turbo (simplejpeg), PNG and WebP through OpenCV, and what those do not
take (small flaws, transparent or deep pixels, images to be turned, frames, other formats) through
Pillow. docs/data.md has the rule for each kind of file, and tests/awkward.py a file of each.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import simplejpeg
from jaxtyping import Float32, Shaped, UInt8, UInt16
from PIL import Image

from vit_jax.data.config import AS_SHOWN, Background, Reading
from vit_jax.data.images import header
from vit_jax.errors import shown

_log = logging.getLogger(__name__)

# Parallelism is over examples; OpenCV's own threads would only fight with those.
cv2.setNumThreads(0)
# Pillow tries what OpenCV cannot read, and gives the reason.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

# Tags of a TIFF.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_COLORS = {1: "GRAY", 3: "RGB"}
# Markers of a JPEG.
_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_FRAMES = (0xC0, 0xC1)  # sequential, Huffman: rows come in order, in one scan
_OTHER_FRAMES = {0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)}
_RESTARTS, _SCAN = 0xDD, 0xDA
_RGB16 = b"\x10\x02"  # bits and kind in a PNG's header
# By these libpng changes how it weighs colours for grey; they are ignored here.
_COLOUR_CHUNKS = {b"gAMA", b"sRGB", b"cHRM", b"iCCP"}
_told_dark = threading.Event()


def pixels(
    image: Image.Image, channels: int, reading: Reading = AS_SHOWN
) -> UInt8[np.ndarray, "H W C"]:
    """Return the pixels of an open image as `decode` has its file's, as far as Pillow kept them.

    Pillow decodes a JPEG itself, which differs by a level at most; colours to grey it rounds.

    Raises ValueError: as `decode`.
    """
    found = flat(image, channels, reading.background)
    return turned(found, header.orientation_of(image) if reading.upright else 1)


def turned(pixels: Shaped[np.ndarray, "H W C"], turn: int) -> Shaped[np.ndarray, "P Q C"]:
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


def decode(
    data: bytes,
    channels: int,
    reading: Reading = AS_SHOWN,
    *,
    exact: bool = True,
    min_size: tuple[int, int] = (0, 0),
    num_rows: int | None = None,
    turn: int = 0,
    size: tuple[int, int] | None = None,
    name: Callable[[], str] = str,
) -> UInt8[np.ndarray, "H W C"] | UInt16[np.ndarray, "H W C"] | Float32[np.ndarray, "H W C"]:
    """Decode an image to RGB (`channels` 3) or grey (1): the first of several frames.

    Where the data are arrays of bands, `channels` of them are read as they are stored, in the dtype
    of `reading` and whole: by `images.bands`.

    A JPEG of more than `image_header.MAX_PIXELS` comes at half its size.

    Args:
        data: a JPEG, PNG, WebP or another of `image_header.FORMATS`; of bands as `bands.read` says.
        channels: 1 or 3; of bands any, 0 as many as there are.
        reading: what becomes of transparent pixels and of the orientation.
        exact: JPEG: the accurate inverse DCT and chroma interpolation, for evaluation. The fast
            ones differ by a level or two in 255.
        min_size: JPEG: (height, width) below which the image may not come out. libjpeg halves it,
            at no cost in time but a gain, as long as it stays above; (0, 0) is full size.
        num_rows: JPEG, not `exact`: rows from the top that are wanted; those below may be missing
            from what is returned, and flaws in them go unnoticed. None is all.
        turn: what `image_header.orientation` returns, where that is known; 0 is not.
        size: JPEG: what `image_header.jpeg_size` returns, where that is known and was checked.
        name: names the image, for a warning.

    Raises ValueError: the bytes are no image, a broken one, numbers of unknown white (a TIFF of
    floats or 32-bit integers), or an image of more than `image_header.MAX_PIXELS` (of a JPEG four
    times as many).
    """
    if reading.bands:
        from vit_jax.data.images import bands  # late: most runs read pictures

        return bands.read(data, channels, reading)
    turn = (turn or header.orientation(data)) if reading.upright else 1
    if data.startswith(header.JPEG):
        least = (min_size[1], min_size[0]) if turn > 4 else min_size
        rows = num_rows if turn in (1, 2) and not exact else None
        pixels = _decode_jpeg(
            data, channels, exact=exact, min_size=least, num_rows=rows, known=size
        )
    else:
        pixels = _decode_other(data, channels, reading.background, name)
    return turned(pixels, turn)


def _decode_jpeg(
    data: bytes,
    channels: int,
    *,
    exact: bool,
    min_size: tuple[int, int],
    num_rows: int | None,
    known: tuple[int, int] | None,
) -> UInt8[np.ndarray, "H W C"]:
    size = known or header.jpeg_size(data)
    if size is None:
        return _decode_pillow(data, channels, Background.DROP)
    if math.prod(size) > header.MAX_PIXELS:
        with header.open_image(data) as image:
            header.check_size(*size, times=header.halvings(image))
        half = -(-size[0] // 2), -(-size[1] // 2)
        min_size, num_rows = (min_size if any(min_size) else half), None
        min_size = min(min_size[0], half[0]), min(min_size[1], half[1])
    if known is None:
        header.check_size(*size, times=4)
    if num_rows is not None:
        rows = decode_rows(data, channels, num_rows)
        if rows is not None:
            return rows
    try:
        return simplejpeg.decode_jpeg(
            data,
            _COLORS[channels],
            fastdct=not exact,
            fastupsample=not exact,
            min_height=min_size[0],
            min_width=min_size[1],
            min_factor=2 if any(min_size) else 1,
        )
    except ValueError:  # a flaw that Pillow may forgive
        return _decode_pillow(data, channels, Background.DROP)


def decode_rows(
    data: bytes, channels: int, num_rows: int
) -> UInt8[np.ndarray, "num_rows W C"] | None:
    """Decode the first rows of a JPEG to 1 or 3 channels, fast as in training.

    libjpeg decodes from the top and stops at the height that the file's header gives. A crop's last
    row is on average at four fifths of an image, so a header that gives this row saves a fifth of
    the time. The pixels are the same to the bit: without "fancy" upsampling no row depends on those
    below. None where this saves nothing or cannot be done (progressive, cut off, damaged above).
    """
    frame = _frame(data)
    if frame is None or data.rfind(_EOI) < frame:  # cut off: refused, whichever rows are wanted
        return None
    height, width = (int.from_bytes(data[at : at + 2]) for at in (frame + 5, frame + 7))
    if num_rows >= height:
        return None
    shorter = bytearray(data)
    shorter[frame + 5 : frame + 7] = num_rows.to_bytes(2)
    pixels = np.empty((num_rows, width, channels), np.uint8)
    try:
        simplejpeg.decode_jpeg(
            shorter, _COLORS[channels], fastdct=True, fastupsample=True, buffer=pixels
        )
    except ValueError as error:
        # libjpeg reports the first thing that it finds amiss: here only the rows left over may be.
        if "extraneous bytes before marker" not in str(error):
            return None
    return pixels


def _frame(data: bytes) -> int | None:
    """Find the frame header of a file of one sequential scan without restart markers."""
    at, frame = len(_SOI), None
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            frame = at
        elif marker == _SCAN:
            count = 0 if frame is None else data[frame + 9]
            # Grey or color, not CMYK; all components in this scan, or others follow.
            return frame if count in (1, 3) and count == data[at + 4] else None
        elif marker in _OTHER_FRAMES or marker == _RESTARTS:
            return None
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def _decode_other(
    data: bytes, channels: int, background: Background, name: Callable[[], str]
) -> UInt8[np.ndarray, "H W C"]:
    size, chunks = header.image_size(data), header.png_chunks(data)
    if size is not None:
        header.check_size(*size)
    plain = chunks is not None or header.is_webp(data)
    if plain and (background is Background.DROP or not _needs_care(data, chunks, channels)):
        flag = cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE
        found = _opencv(data, flag | cv2.IMREAD_IGNORE_ORIENTATION)
        if found is not None:
            pixels = found.reshape(*found.shape[:2], channels)
            if chunks is not None and data[24] == 16 and b"sBIT" not in chunks:
                _warn_if_dark(pixels, name)
            return pixels
    if chunks is not None and data[24:26] == _RGB16 and background is not Background.DROP:
        deep = _opencv(data, cv2.IMREAD_UNCHANGED) if b"tRNS" in chunks else None
        if deep is not None and deep.shape[2:] == (4,):  # Pillow has 8 bits, too few to compare
            rgba = Image.fromarray((deep[..., [2, 1, 0, 3]] >> 8).astype(np.uint8))
            return flat(rgba, channels, background)
    return _decode_pillow(data, channels, background, name)


def _needs_care(data: bytes, chunks: list[bytes] | None, channels: int) -> bool:
    """Return whether a PNG or WebP has transparent pixels, frames or what changes its grey."""
    if chunks is None:
        return header.is_layered(data)
    kind = data[25]  # bits: 1 palette, 2 colours, 4 alpha
    if kind & 4 or b"tRNS" in chunks or b"acTL" in chunks:
        return True
    return channels == 1 and bool(kind & 2) and not _COLOUR_CHUNKS.isdisjoint(chunks)


def _opencv(data: bytes, flag: int) -> np.ndarray | None:
    with contextlib.suppress(cv2.error):
        return cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    return None


def _decode_pillow(
    data: bytes, channels: int, background: Background, name: Callable[[], str] = str
) -> UInt8[np.ndarray, "H W C"]:
    with header.open_image(data) as image:
        header.check_size(image.height, image.width)
        pixels = flat(image, channels, background)
        if image.mode.startswith("I") and bits(image) == 16:
            _warn_if_dark(pixels, name)
        return pixels


def _warn_if_dark(pixels: UInt8[np.ndarray, "H W C"], name: Callable[[], str]) -> None:
    """Warn once that a 16-bit image has no value of 4096 or more, as unscaled 12 bits have."""
    if 0 < pixels.max() < 16 and not _told_dark.is_set():
        _told_dark.set()
        _log.warning(
            "%s has 16 bits and no value of 4096 or more, as images of 12 bits have that were not "
            "scaled: such images come out dark; scale them to 16 bits, or name their bits (sBIT)",
            shown(name() or "an image"),
        )
