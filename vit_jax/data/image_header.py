# SPDX-License-Identifier: Apache-2.0
"""Encoded images before they are decoded: format and size by the header, and what is refused."""

import contextlib
import io
import os
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import simplejpeg

if TYPE_CHECKING:
    from PIL import Image

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
# What a folder is searched for; a file that is named is read whatever its name.
SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".avif", ".ppm", ".pgm"),
)
# Not all of Pillow's formats: for EPS it would start another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
# A file of a few kB can hold a billion pixels. Pillow's limit too, a quarter of a GiB as RGB.
MAX_PIXELS = 89_478_485
MAX_ASPECT = 500  # a strip of one pixel would become gigabytes where its short side is enlarged
MAX_BYTES = 1 << 28

_HEIC = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1")  # at byte 4


def read_file(path: str | Path) -> bytes:
    """Read a file in one go; raises ValueError: more than `MAX_BYTES`, or a pipe or a device."""
    status = os.stat(path)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # `open` refuses those
        raise ValueError("is no regular file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"a file of more than {MAX_BYTES >> 20} MiB")
    with open(path, "rb", buffering=0) as file:
        return file.read()


def is_webp(data: bytes) -> bool:
    """Return whether the bytes begin as a WebP does."""
    return data.startswith(b"RIFF") and data[8:12] == b"WEBP"


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a JPEG from its header; None where this is not a readable one."""
    with contextlib.suppress(ValueError):
        if data.startswith(JPEG):
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            return int(height), int(width)
    return None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a JPEG, PNG or WebP from its header; None for anything else."""
    if data.startswith(PNG):
        return int.from_bytes(data[20:24]), int.from_bytes(data[16:20])
    if not is_webp(data):
        return jpeg_size(data)

    def little(start: int, stop: int) -> int:
        return int.from_bytes(data[start:stop], "little")

    match data[12:16]:  # the first chunk (RFC 9649): a canvas, a lossless image or a lossy one
        case b"VP8X":
            return little(27, 30) + 1, little(24, 27) + 1
        case b"VP8L":
            return (little(21, 25) >> 14 & 0x3FFF) + 1, (little(21, 25) & 0x3FFF) + 1
        case b"VP8 ":
            return little(28, 30) & 0x3FFF, little(26, 28) & 0x3FFF
    return None


def is_sound_png(data: bytes) -> bool:
    """Return whether the bytes begin as a PNG does, and no chunk claims more bytes than are left.

    OpenCV takes memory for all of them, up to 4 GiB, before it looks whether they are there.
    """
    at = len(PNG)
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])  # length, name, checksum
        if end > len(data):
            return False
        if data[at + 4 : at + 8] == b"IEND":
            break
        at = end
    return data.startswith(PNG)


def check_size(height: int, width: int, times: int = 1) -> None:
    """Refuse (ValueError) an image of too many pixels, decoded or resized, `times` the limit."""
    if min(height, width) < 1:
        raise ValueError(f"{width}x{height} pixels")
    if height * width > times * MAX_PIXELS:
        limit = f"{times * MAX_PIXELS / 1e6:.0f} million"
        raise ValueError(f"{width}x{height} pixels, where {limit} are the limit")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"{width}x{height} pixels, a strip of more than {MAX_ASPECT}:1")


def open_image(data: bytes) -> "Image.Image":
    """Open an image with Pillow, which reads its header; of pixels nothing yet.

    Raises ValueError: no image of `FORMATS`, a broken one, or one of far too many pixels.
    """
    from PIL import Image, JpegImagePlugin, UnidentifiedImageError  # late: few images need it

    if not data:
        raise ValueError("the file is empty")
    if data[4:12] in _HEIC:
        raise ValueError("a HEIC photograph, which is not read here; save it as JPEG")
    # No message about half a limit that is enforced here. For good, as `catch_warnings` is not for
    # threads; once, as every change has Python repeat the warnings that it has shown.
    if ("ignore", None, Image.DecompressionBombWarning, None, 0) not in warnings.filters:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    try:
        if data.startswith(JPEG):  # `Image.open` refuses what libjpeg can halve
            return JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        limit = f"{MAX_PIXELS / 1e6:.0f} million"
        raise ValueError(f"more pixels than {limit}, the limit") from None
    except UnidentifiedImageError:
        raise ValueError(f"no image of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # of broken headers Pillow's readers raise anything
        raise ValueError(f"a broken header ({str(error) or type(error).__name__})") from error
