# SPDX-License-Identifier: Apache-2.0
"""Encoded images before they are decoded: format and size by the header, and what is refused."""

import contextlib
import errno
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
# What a folder was searched for by versions that did not record it: their runs go on so.
OLD_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"),
    *(".tif", ".tiff", ".avif", ".ppm", ".pgm"),
)
# What a folder is searched for; a file that is named is read whatever its name.
SUFFIXES = (
    *OLD_SUFFIXES,
    *(".jpe", ".jfif", ".jif", ".mpo", ".apng", ".dib", ".avifs", ".pbm", ".pnm"),
)
# Images too, but of formats that are not read: a folder counts them among what it left out.
UNREAD_SUFFIXES = (
    *(".heic", ".heif", ".hif", ".jxl", ".jp2", ".j2k", ".jpf", ".jpx", ".jxr", ".tga"),
    *(".psd", ".psb", ".xcf", ".ico", ".svg", ".eps", ".ai", ".exr", ".hdr", ".pfm", ".qoi"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"),
    *(".dcm", ".pcx", ".dds", ".wmf", ".emf", ".fits", ".nii"),
)
UNREAD = "an image of a format that is not read here; save it as JPEG or PNG"
# Not all of Pillow's formats: for EPS it would start another program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
# A file of a few kB can hold a billion pixels. Pillow's limit too, a quarter of a GiB as RGB.
MAX_PIXELS = 89_478_485
MAX_ASPECT = 500  # a strip of one pixel would become gigabytes where its short side is enlarged
MAX_BYTES = 1 << 28
_TOO_LONG = "a file of more than {} MiB"

# The brands of a file of HEIF's (at byte 8 and from 16 on) that say how its pixels are coded. The
# general ones, mif1 and msf1, say nothing: an AVIF may begin with one.
_AVIF_BRANDS = {b"avif", b"avis", b"avio"}
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
_HEIF_BRANDS = {b"mif1", b"msf1", b"mif2"}
_HEIC = "a HEIC photograph, which is not read here; save it as JPEG"


class BrokenHeader(ValueError):
    """No image can be made of these bytes' beginning: of no known format, or damaged there."""


def read_file(path: str | Path) -> bytes:
    """Read a file in one go; raises ValueError: more than `MAX_BYTES`, or a pipe or a device."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is no regular file")
    if status.st_size > MAX_BYTES:
        raise ValueError(_TOO_LONG.format(MAX_BYTES >> 20))
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object takes twice the time
    try:
        data = os.read(file, status.st_size + 1)
        while more := os.read(
            file, 1 << 20
        ):  # some file systems give less at once, or tell no size
            data += more
        return data
    finally:
        os.close(file)


def is_webp(data: bytes) -> bool:
    """Return whether the bytes begin as a WebP does."""
    return data.startswith(b"RIFF") and data[8:12] == b"WEBP"


def is_heic(data: bytes) -> bool:
    """Return whether the bytes begin as an image of HEIF's does, and one that is no AVIF."""
    if data[4:8] != b"ftyp":
        return False
    stop = min(int.from_bytes(data[:4]), 256)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, stop, 4))}
    if brands & _AVIF_BRANDS:
        return False
    return bool(brands & (_HEIC_BRANDS | _HEIF_BRANDS))


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
        if len(data) < 24:
            return None
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


def png_chunks(data: bytes) -> list[bytes] | None:
    """List the names of a PNG's chunks; None: it is none, or one claims more bytes than are left.

    OpenCV takes memory for all of them, up to 4 GiB, before it looks whether they are there.
    """
    if not data.startswith(PNG) or data[12:16] != b"IHDR" or len(data) < _PNG_HEADER:
        return None
    at, found = len(PNG), []
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])  # length, name, checksum
        if end > len(data):
            return None
        name = data[at + 4 : at + 8]
        if name == b"IEND":
            break
        if name in _TEXTS and data[at + 8 : at + 29].startswith(_TURNING_TEXTS):
            name = b"eXIf"  # as ImageMagick and Adobe write it
        found.append(name)
        at = end
    return found


_PNG_HEADER = 33  # bytes, its first chunk included
_TEXTS = {b"tEXt", b"zTXt", b"iTXt"}
_TURNING_TEXTS = (b"Raw profile type exif", b"Raw profile type APP1", b"XML:com.adobe.xmp")


def orientation(data: bytes) -> int:
    """Return where the first row and column of the stored pixels belong: EXIF's number, 1 to 8.

    It is looked for where the header says that there is any; a TIFF Pillow turns by itself.
    """
    if data.startswith(JPEG):
        told = _has_app1(data)
    elif data.startswith(PNG):
        told = b"eXIf" in (png_chunks(data) or ())
    elif is_webp(data):
        told = data[12:16] == b"VP8X" and bool(_byte(data, 20) & _WEBP_METADATA)
    else:
        told = data[4:8] == b"ftyp"
    if not told:
        return 1
    try:
        with open_image(data) as image:
            return orientation_of(image)
    except ValueError:  # which decoding will say
        return 1


def orientation_of(image: "Image.Image") -> int:
    """Return the same of an image that Pillow has opened."""
    if image.format == "TIFF":
        return 1
    try:
        found = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # whatever is wrong with EXIF, the pixels are there
        return 1
    return found if 1 <= found <= 8 else 1


_ORIENTATION = 0x0112
_WEBP_METADATA, _WEBP_ALPHA, _WEBP_ANIMATION = 0x0C, 0x10, 0x02  # flags of a VP8X


def _has_app1(data: bytes) -> bool:
    """Return whether a JPEG has EXIF or XMP before its first scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xE1:
            return True
        if marker == 0xDA:
            return False
        at += 2 + int.from_bytes(data[at + 2 : at + 4]) if marker != 0xFF else 1
    return False


def is_layered(data: bytes) -> bool:
    """Return whether a WebP has transparent pixels or several frames."""
    if data[12:16] == b"VP8L":
        return bool(_byte(data, 24) & 0x10)
    return data[12:16] == b"VP8X" and bool(_byte(data, 20) & (_WEBP_ALPHA | _WEBP_ANIMATION))


def _byte(data: bytes, at: int) -> int:
    """Return a byte; 0 behind the end of a file that is cut off."""
    return int.from_bytes(data[at : at + 1])


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
    if is_heic(data):
        raise ValueError(_HEIC)
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
        raise BrokenHeader(f"no image of a known format ({', '.join(FORMATS)})") from None
    except Exception as error:  # of broken headers Pillow's readers raise anything
        raise BrokenHeader(f"a broken header ({str(error) or type(error).__name__})") from error


def look(head: bytes, size: int) -> str:
    """Return why a file is no image that can be read, by its header alone; "" where none is seen.

    Args:
        head: the file's first bytes, of which 64 kB tell nearly all; pixels are not decoded.
        size: the bytes of the whole file.
    """
    if size > MAX_BYTES:
        return _TOO_LONG.format(MAX_BYTES >> 20)
    whole = len(head) >= size
    if is_webp(head) and int.from_bytes(head[4:8], "little") + 8 > size:
        return "the file is cut off"
    if not head.startswith(JPEG) and len(head) >= 32 and image_size(head):
        try:
            check_size(*image_size(head) or (0, 0))  # of a WebP, Pillow needs the whole file
        except ValueError as error:
            return str(error)
    try:
        with open_image(head) as image:
            check_size(image.height, image.width, times=halvings(image))
    except BrokenHeader as error:
        # The rest may lie behind the first bytes: a TIFF's header may be at its end.
        return str(error) if whole or not _begins(head) else ""
    except ValueError as error:
        return str(error)
    return ""


def halvings(image: "Image.Image") -> int:
    """Return how many times `MAX_PIXELS` an opened image may have: libjpeg halves its sides.

    With a progressive JPEG, libjpeg would still hold all coefficients: a gigabyte.
    """
    is_jpeg = image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB")
    return 4 if is_jpeg and not image.info.get("progressive") else 1


def _begins(data: bytes) -> bool:
    """Return whether the bytes begin as a file of one of `FORMATS` does."""
    magic = (JPEG, PNG, b"GIF8", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
    netpbm = data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace()
    return data.startswith(magic) or is_webp(data) or data[4:8] == b"ftyp" or netpbm
