# SPDX-License-Identifier: Apache-2.0
"""Images as people name them: files, folders and patterns; read as training and evaluation do."""

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image

from vit_jax.data.config import AS_SHOWN, Reading
from vit_jax.data.images import bands as bands_lib
from vit_jax.data.images import header as image_header
from vit_jax.data.images.decode import decode, pixels
from vit_jax.data.images.header import SUFFIXES
from vit_jax.errors import UserError, shown


def expand(names: Sequence[str], stdin: Iterable[str] = (), bands: Sequence[str] = ()) -> list[str]:
    """Find the images that names stand for: each once, in the order of the names.

    Args:
        names: files; folders, searched to any depth; patterns such as "photos/**/*.jpg", for where
            no shell has expanded them; "-", a list of names on stdin. What a folder or a pattern
            finds comes in natural order: img2 before img10.
        stdin: the lines of that list. It may be long, and outdated: its files need not exist.
        bands: as `DataConfig.bands`: the files are arrays, of named bands in a folder.

    Raises UserError: a name that finds no image, a folder that may not be read.
    """
    found: list[str] = []
    suffixes = bands_lib.SUFFIXES if bands else SUFFIXES
    for name in names:
        if name == "-":
            for line in stdin:
                listed = line.rstrip("\r\n")
                found += _matches(listed, suffixes) or [listed] if listed else []
            continue
        matches = _matches(name, suffixes)
        if not matches and (os.path.isdir(name) or glob.has_magic(name)):
            raise UserError(f"{name}: no images there ({', '.join(suffixes)})")
        if not matches:
            raise UserError(f"{name}: no such file or folder")
        found += matches
    found = bands_lib.examples(found, bands) if bands else found
    once: dict[str, str] = {}
    for name in found:
        once.setdefault(os.path.abspath(name), name)
    return list(once.values())


def _matches(name: str, suffixes: tuple[str, ...]) -> list[str]:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _in_folder(path, suffixes)
    if os.path.exists(path):  # before it is a pattern: brackets may be part of a name
        return [path]
    found: list[str] = []
    for match in sorted(glob.glob(path, recursive=True), key=_natural):
        if os.path.isdir(match):
            found += _in_folder(match, suffixes)
        elif match.lower().endswith(suffixes):
            found.append(match)
    return found


def _in_folder(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: {error.strerror}")

    found = [
        os.path.join(place, file)
        for place, _, files in os.walk(folder, onerror=refuse)
        for file in files
        if file.lower().endswith(suffixes) and not file.startswith(".")
    ]
    return sorted(found, key=_natural)


def _natural(path: str) -> list[tuple[int, str]]:
    """Order numbers by their value; by folder, as the separator sorts first."""
    parts = re.split(r"(\d+)", path.replace(os.sep, "\0"))
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


def read_image(
    source: str | Path | bytes, channels: int, reading: Reading = AS_SHOWN
) -> Num[np.ndarray, "H W C"]:
    """Read a file, or its bytes, as `data.images.decode.decode` does.

    Raises UserError: no image, a broken one or one too large; names the file and the reason.
    """
    name = "image" if isinstance(source, bytes) else shown(str(source))
    with _said(name):
        if reading.bands and not isinstance(source, bytes) and os.path.isdir(source):
            source = bands_lib.packed_folder(source, reading.bands)
        data = source if isinstance(source, bytes) else image_header.read_file(source)
        return decode(data, channels, reading, name=lambda: name)


def read_pillow(
    image: Image.Image, channels: int, reading: Reading = AS_SHOWN
) -> UInt8[np.ndarray, "H W C"]:
    """Return the pixels of an open image as `data.images.decode.pixels` does.

    Raises UserError: as `read_image`.
    """
    with _said("image"):
        return pixels(image, channels, reading)


@contextlib.contextmanager
def _said(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, cv2.error, MemoryError) as error:
        text = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
        reason = " ".join(text.split()) or type(error).__name__
        raise UserError(f"{name}: {reason[0].lower()}{reason[1:]}") from error
