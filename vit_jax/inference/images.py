# SPDX-License-Identifier: Apache-2.0
"""Images as people have them: files, folders and patterns of names, photographs of any kind.

Pixels are those that evaluation sees, with two differences, both in `read_image`.
"""

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data import image_header
from vit_jax.data.decode import decode
from vit_jax.data.image_header import SUFFIXES
from vit_jax.errors import UserError, shown

_ORIENTATION = 0x0112


def expand(names: Sequence[str], stdin: Iterable[str] = ()) -> list[str]:
    """Find the images that names stand for: each once, in the order of the names.

    Args:
        names: files; folders, searched to any depth; patterns such as "photos/**/*.jpg", for where
            no shell has expanded them; "-", a list of names on stdin. What a folder or a pattern
            finds comes in natural order: img2 before img10.
        stdin: the lines of that list. It may be long, and outdated: its files need not exist.

    Raises UserError: a name that finds no image, a folder that may not be read.
    """
    found: list[str] = []
    for name in names:
        if name == "-":
            for line in stdin:
                listed = line.rstrip("\r\n")
                found += _matches(listed) or [listed] if listed else []
            continue
        matches = _matches(name)
        if not matches and (os.path.isdir(name) or glob.has_magic(name)):
            raise UserError(f"{name}: no images there ({', '.join(SUFFIXES)})")
        if not matches:
            raise UserError(f"{name}: no such file or folder")
        found += matches
    once: dict[str, str] = {}
    for name in found:
        once.setdefault(os.path.abspath(name), name)
    return list(once.values())


def _matches(name: str) -> list[str]:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _in_folder(path)
    if os.path.exists(path):  # before it is a pattern: brackets may be part of a name
        return [path]
    found: list[str] = []
    for match in sorted(glob.glob(path, recursive=True), key=_natural):
        if os.path.isdir(match):
            found += _in_folder(match)
        elif match.lower().endswith(SUFFIXES):
            found.append(match)
    return found


def _in_folder(folder: str) -> list[str]:
    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: {error.strerror}")

    found = [
        os.path.join(place, file)
        for place, _, files in os.walk(folder, onerror=refuse)
        for file in files
        if file.lower().endswith(SUFFIXES) and not file.startswith(".")
    ]
    return sorted(found, key=_natural)


def _natural(path: str) -> list[tuple[int, str]]:
    """Order numbers by their value; by folder, as the separator sorts first."""
    parts = re.split(r"(\d+)", path.replace(os.sep, "\0"))
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


def read_image(source: str | Path | bytes, channels: int) -> UInt8[np.ndarray, "H W C"]:
    """Read a file, or its bytes, to RGB (`channels` 3) or grey (1); the first frame of several.

    The pixels are those of `data.decode.decode`, as in evaluation, but for:

    * EXIF orientation, which is applied: phones store every photograph as the sensor lay. Training
      and evaluation ignore it, as the published models' training did; datasets are mostly upright.
    * Transparency, which becomes white: what lies under it is arbitrary, often black, and cut-outs
      are drawn for a white page. Training drops the alpha channel.

    A JPEG above `image_header.MAX_PIXELS` comes at half its size: the largest sensors have four
    times as many.

    Raises UserError: no image, a broken one or one too large; names the file and the reason.
    """
    name = "image" if isinstance(source, bytes) else shown(str(source))
    try:
        return _pixels(
            source if isinstance(source, bytes) else image_header.read_file(source), channels
        )
    except (ValueError, OSError, cv2.error, MemoryError) as error:
        text = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
        reason = " ".join(text.split()) or type(error).__name__
        raise UserError(f"{name}: {reason[0].lower()}{reason[1:]}") from error


def from_pillow(image: Image.Image, channels: int) -> UInt8[np.ndarray, "H W C"]:
    """Return the pixels of an open image as `read_image` has them: upright, on white."""
    if image.has_transparency_data:
        pixels = _on_white(image, channels)
    else:
        pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    return _upright(pixels.reshape(*pixels.shape[:2], channels), _orientation(image))


def _pixels(data: bytes, channels: int) -> UInt8[np.ndarray, "H W C"]:
    with image_header.open_image(data) as image:
        height, width, mode = image.height, image.width, image.mode
        jpeg = data.startswith(image_header.JPEG)
        image_header.check_size(height, width, times=4 if jpeg and mode in ("L", "RGB") else 1)
        if not jpeg and image.has_transparency_data and mode != "I;16":
            pixels = _on_white(image, channels)
        else:
            halved = height * width > image_header.MAX_PIXELS
            least = (-(-height // 2), -(-width // 2)) if halved else (0, 0)
            pixels = decode(data, channels, min_size=least)
        return _upright(pixels, _orientation(image, data))


def _on_white(image: Image.Image, channels: int) -> UInt8[np.ndarray, "H W C"]:
    try:
        white = Image.new("RGBA", image.size, "white")
        flat = Image.alpha_composite(white, image.convert("RGBA"))
    except SyntaxError as error:  # Pillow's, for a bad PNG
        raise ValueError(str(error)) from error
    pixels = np.asarray(flat.convert("RGB" if channels == 3 else "L"))
    return pixels.reshape(*pixels.shape[:2], channels)


def _orientation(image: Image.Image, data: bytes = b"") -> int:
    """Return EXIF's number, 1 to 8: where the first row and column of the pixels lie.

    `data` is the file, without which a PNG's is not looked for.
    """
    if image.format == "TIFF" or (image.format == "PNG" and b"eXIf" not in data):
        return 1  # Pillow turns a TIFF itself; of a PNG it would decode all to search for EXIF
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # whatever is wrong with EXIF, the pixels are there
        return 1


def _upright(pixels: UInt8[np.ndarray, "H W C"], orientation: int) -> UInt8[np.ndarray, "P Q C"]:
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
