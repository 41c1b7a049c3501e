# SPDX-License-Identifier: Apache-2.0
"""Contact sheets: rows of small images with captions, as one PNG small enough for a page.

`overlay` lays a heat map over an image.
"""

import functools
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from vit_jax.errors import shown
from vit_jax.figures import plots as figures
from vit_jax.process.escapes import terminal
from vit_jax.storage import files

# Bytes that a sheet may have. Tiles are made smaller until it fits, at last of fewer colours.
_MAX_BYTES = 840_000
_SIDES = (320, 288, 256, 224, 192, 168, 144, 128, 112, 96)
_COLOURS = 256
_MARGIN = 12
_FRAME = "#d0d0d0"
_FONT_SIZE, _LINE = 22, 28  # of a screen with two pixels for one of a page

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
# From least to most; lightness rises all the way, so that a grey print keeps the order.
_COLORS = ((0, 0, 4), (60, 15, 110), (150, 38, 103), (222, 73, 64), (251, 155, 6), (252, 255, 164))


class Tile(NamedTuple):
    """An image of 1 or 3 channels and what is written below it."""

    image: UInt8[np.ndarray, "H W C"]
    caption: str


def spaced(count: int, most: int) -> list[int]:
    """Choose up to `most` of 0..count - 1, evenly spaced with both ends."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def wrapped(tiles: list[Tile], columns: int) -> list[list[Tile]]:
    """Break tiles into rows."""
    return [tiles[i : i + columns] for i in range(0, len(tiles), columns)]


def write(out: Path, name: str, png: bytes) -> str:
    """Write a picture into the folder that --out names, made where absent; returns its path.

    Raises UserError: it cannot be written.
    """
    files.make_folder(out, "--out")
    with files.refused(f"--out={out}"):
        files.write(out / name, png)
    return shown(str(out / name))


def render(rows: list[list[Tile]], title: str) -> bytes:
    """Draw a contact sheet and return it as a PNG of at most 256 colours and 840 kB, if need be.

    Small images are enlarged by whole numbers, their pixels to be seen as they are.
    """
    tiles = sum(map(len, rows))
    sheets = [(side, _COLOURS) for side in _SIDES] + [(_SIDES[-1], 64), (_SIDES[-1], 16)]
    for side, colours in sheets:
        if tiles * side**2 > 3 * _MAX_BYTES and side > _SIDES[-1]:
            continue  # photographs take half a byte a pixel: not worth a try
        out, sheet = io.BytesIO(), _draw(rows, title, side)
        # k-means keeps greys grey beside many colours; it stops when so few pixels change colour.
        settled = max(1, sheet.width * sheet.height // 20)
        small = sheet.quantize(colours, kmeans=settled, dither=Image.Dither.NONE)
        small.save(out, "PNG", optimize=True)
        if out.tell() <= _MAX_BYTES:
            break
    return out.getvalue()


def _draw(rows: list[list[Tile]], title: str, side: int) -> Image.Image:
    words = [title, *(tile.caption for row in rows for tile in row)]
    font = _font(frozenset(character for text in words for character in text if character > "\x7f"))
    step = side + _MARGIN
    width = max(len(row) for row in rows) * step + _MARGIN
    captions = [[_wrap(tile.caption, side, font) for tile in row] for row in rows]
    heading = _wrap(title, width - 2 * _MARGIN, font)
    pictures = [[_fit(tile.image, side) for tile in row] for row in rows]
    heights = [max(picture.height for picture in row) for row in pictures]
    below = [_LINE * max(map(len, texts)) + 2 * _MARGIN for texts in captions]
    top = _LINE * len(heading) + 2 * _MARGIN
    sheet = Image.new("RGB", (width, top + sum(heights) + sum(below)), "white")
    draw = ImageDraw.Draw(sheet)

    def write(lines: list[str], left: int, top: int) -> None:
        for i, line in enumerate(lines):
            draw.text((left, top + i * _LINE), line, "black", font)

    write(heading, _MARGIN, _MARGIN)
    for row, texts, height, space in zip(pictures, captions, heights, below, strict=True):
        for i, (picture, text) in enumerate(zip(row, texts, strict=True)):
            left = _MARGIN + i * step + (side - picture.width) // 2
            right, bottom = left + picture.width, top + picture.height
            edge = left - 2, top - 2, right + 1, bottom + 1
            draw.rectangle(edge, outline=_FRAME, width=2)  # else a white picture would have none
            sheet.paste(picture, (left, top))
            write(text, left, top + height + 2)
        top += height + space
    return sheet


@functools.cache
def _font(drawn: frozenset[str]) -> Font:
    """Load the font that has the characters of names beyond ASCII, which Pillow's own lacks.

    It is Matplotlib's, with accents, Greek and Cyrillic, or else the first that adds to it.
    """
    from matplotlib import font_manager

    families, _ = figures.fonts(drawn)
    return ImageFont.truetype(
        font_manager.findfont(families[min(1, len(families) - 1)]), _FONT_SIZE
    )


def _fit(image: np.ndarray, side: int) -> Image.Image:
    picture = Image.fromarray(image if image.shape[2] == 3 else image[..., 0]).convert("RGB")
    times = side // max(picture.size)
    is_small = times > 1
    scale = times if is_small else side / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size, Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS)


def _wrap(text: str, width: int, font: Font) -> list[str]:
    """Break a text so that no line is wider than `width` pixels: at spaces, or within a word."""
    lines = []
    for paragraph in text.splitlines():
        line = ""
        for word in terminal(paragraph).split():
            space = " " if line else ""
            for part in _parts(word, width, font):
                if line and font.getlength(line + space + part) > width:
                    lines.append(line)
                    line, space = "", ""
                line, space = line + space + part, ""
        lines.append(line)
    return lines


def _parts(word: str, width: int, font: Font) -> str | list[str]:
    """Cut a word that is wider than a line into its characters."""
    return word if font.getlength(word) > width else [word]


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
    """Lay a heat map, brought bilinearly to the image's size, over the image in its colours.

    The more heat, the less the image shows through: not at all changed where `heat` is least, a
    fifth of it under light yellow where it is greatest.
    """
    height, width = image.shape[:2]
    small = Image.fromarray(spread(heat))
    warm = np.asarray(small.resize((width, height), Image.Resampling.BILINEAR))
    share = 0.8 * warm[..., None]
    return np.rint((1 - share) * image + share * colors(warm)).astype(np.uint8)
