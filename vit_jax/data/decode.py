# SPDX-License-Identifier: Apache-2.0
"""Encoded JPEG, PNG or WebP bytes to uint8 pixels, for training, evaluation and prediction alike.

JPEG goes through libjpeg-turbo (simplejpeg), PNG and WebP through OpenCV, and what those do not
take (CMYK, small flaws, other formats) through Pillow. EXIF orientation is ignored, as TensorFlow's
decoders ignore it: published models were trained that way.
"""

import contextlib
from typing import TYPE_CHECKING

import cv2
import numpy as np
import simplejpeg
from jaxtyping import UInt8

from vit_jax.data import image_header as header

if TYPE_CHECKING:
    from PIL import Image

# Parallelism is over examples; OpenCV's own threads would only fight with those.
cv2.setNumThreads(0)
# Pillow tries what OpenCV cannot read, and gives the reason.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

_COLORS = {1: "GRAY", 3: "RGB"}
# Markers of a JPEG.
_SOI = b"\xff\xd8"
_FRAMES = (0xC0, 0xC1)  # sequential, Huffman: rows come in order, in one scan
_OTHER_FRAMES = {0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)}
_RESTARTS, _SCAN = 0xDD, 0xDA


def decode(
    data: bytes,
    channels: int,
    *,
    exact: bool = True,
    min_size: tuple[int, int] = (0, 0),
    num_rows: int | None = None,
) -> UInt8[np.ndarray, "H W C"]:
    """Decode an image to RGB (`channels` 3) or grey (1); an alpha channel is dropped.

    Args:
        data: a JPEG, PNG, WebP or another of `image_header.FORMATS`.
        channels: 1 or 3.
        exact: JPEG: the accurate inverse DCT and chroma interpolation, for evaluation. The fast
            ones differ by a level or two in 255.
        min_size: JPEG: (height, width) below which the image may not come out. libjpeg halves it,
            at no cost in time but a gain, as long as it stays above; (0, 0) is full size.
        num_rows: JPEG, not `exact`: rows from the top that are wanted; those below may be missing
            from what is returned, and flaws in them go unnoticed. None is all.

    Raises ValueError: the bytes are no image, a broken one, numbers of unknown white (a TIFF of
    floats or 32-bit integers), or an image of more than `image_header.MAX_PIXELS` (of a JPEG four
    times as many, where `min_size` lets it be halved).
    """
    size = header.image_size(data)
    if size is not None:
        halved = any(min_size) and all(2 * m <= n + 1 for m, n in zip(min_size, size, strict=True))
        header.check_size(*size, times=4 if halved and data.startswith(header.JPEG) else 1)
    if data.startswith(header.JPEG) and size is not None:
        if num_rows is not None and not exact:
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
        except ValueError:
            pass  # CMYK, of which ImageNet has some, or a flaw that Pillow may forgive
    elif header.is_webp(data) or header.is_sound_png(data):
        flag = cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE
        flag |= cv2.IMREAD_IGNORE_ORIENTATION
        with contextlib.suppress(cv2.error):
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
            if image is not None:
                return image.reshape(*image.shape[:2], channels)
    return _decode_pillow(data, channels)


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
    if frame is None:
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


def _decode_pillow(data: bytes, channels: int) -> UInt8[np.ndarray, "H W C"]:
    try:
        with header.open_image(data) as image:
            header.check_size(image.height, image.width)
            grey = _deep_grey(image)
            if grey is not None:
                return np.repeat(grey[..., None], channels, axis=-1)
            pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    except ValueError:
        raise
    except Exception as error:  # of broken files Pillow's readers raise anything
        raise ValueError(str(error) or type(error).__name__) from error
    return pixels.reshape(*pixels.shape[:2], channels)


# Tags of a TIFF.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0


def _deep_grey(image: "Image.Image") -> UInt8[np.ndarray, "H W"] | None:
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
    tags = getattr(image, "tag_v2", {})
    (bits,) = tags.get(_BITS_PER_SAMPLE, (16,))
    grey = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
    return 255 - grey if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else grey
