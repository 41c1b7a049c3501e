# SPDX-License-Identifier: Apache-2.0
"""TIFF files of any number of samples, by the TIFF 6.0 specification and BigTIFF's, without loss.

Pillow refuses most files of more than four samples and OpenCV reads some wrongly. So the tags are
read here; of what zlib does not decompress, strips and tiles are given to libtiff, in Pillow, as
grey bytes; and what a predictor did to them is undone here.
"""

import io
import itertools
import math
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from vit_jax.data.images.header import MAX_PIXELS, check_size

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_MOST_PAGES = 4096
_MOST_SAMPLES = 1024
# The tags that are read; lower-case names of the specification's.
_TAGS = {
    254: "subfile",
    256: "width",
    257: "height",
    258: "bits",
    259: "compression",
    273: "strip_offsets",
    277: "samples",
    278: "rows_per_strip",
    279: "strip_counts",
    284: "planar",
    317: "predictor",
    322: "tile_width",
    323: "tile_height",
    324: "tile_offsets",
    325: "tile_counts",
    339: "format",
    42113: "nodata",
}
_TYPES = {1: "B", 2: "s", 3: "H", 4: "I", 6: "b", 7: "s", 8: "h", 9: "i", 13: "I", 16: "Q", 18: "Q"}
_KINDS = {1: "u", 2: "i", 3: "f"}
# Those that change no value.
_COMPRESSIONS = {1: "none", 5: "LZW", 8: "deflate", 32946: "deflate", 32773: "PackBits"}
_REDUCED, _MASK = 1, 4  # kinds of pages that are no bands: overviews and transparency
_HORIZONTAL, _FLOATING = 2, 3  # predictors
_PLANES = 2  # each sample in strips of its own


class Page(NamedTuple):
    """One image of a file: its tags, and what its numbers are."""

    tags: dict[str, Any]
    height: int
    width: int
    samples: int
    dtype: np.dtype  # with the file's order of bytes


def pages(data: bytes) -> list[Page]:
    """Read the tags of every page that holds bands.

    Raises ValueError: no TIFF that is read here, a damaged one.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or not data.startswith(MAGIC):
        raise ValueError("no TIFF")
    big = data[2:4] in (b"+\0", b"\0+")
    found: list[Page] = []
    try:
        (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
        seen: set[int] = set()
        while at and at not in seen and len(seen) < _MOST_PAGES:
            seen.add(at)
            tags, at = _directory(data, at, order, big)
            if not tags.get("subfile", (0,))[0] & (_REDUCED | _MASK):
                found.append(_page(tags, order))
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError("a TIFF that is cut off or damaged") from error
    if not found:
        raise ValueError("a TIFF without an image in it")
    if len({page[1:3] for page in found}) > 1:
        sizes = sorted({f"{page.width}x{page.height}" for page in found})
        raise ValueError(f"a TIFF with pages of several sizes ({', '.join(sizes[:3])})")
    if len({page.dtype for page in found}) > 1:
        raise ValueError("a TIFF with pages of several dtypes")
    if sum(page.samples for page in found) > _MOST_SAMPLES:
        raise ValueError(f"a TIFF of more than {_MOST_SAMPLES} bands")
    return found


def nodata(page: Page) -> float | None:
    """Return the number that stands for no measurement, where GDAL wrote one."""
    try:
        return float(bytes(page.tags["nodata"][0]).split(b"\0")[0])
    except (KeyError, ValueError):
        return None


def read(data: bytes) -> Shaped[np.ndarray, "H W C"]:
    """Read all samples of all pages, in the order of the file and the machine's order of bytes.

    Raises ValueError: no TIFF, a damaged one, or one that is compressed in a way that loses values.
    """
    found = [_pixels(data, page) for page in pages(data)]
    whole = found[0] if len(found) == 1 else np.concatenate(found, axis=2)
    return whole.astype(whole.dtype.newbyteorder("="), copy=False)


def _directory(data: bytes, at: int, order: str, big: bool) -> tuple[dict[str, Any], int]:
    """Return the values of the tags of a directory, and where the next one lies; 0 is none."""
    (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
    at += 8 if big else 2
    size, inline = (20, 8) if big else (12, 4)
    tags: dict[str, Any] = {}
    for entry in range(at, at + min(count, 4096) * size, size):
        tag, kind, number = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, entry)
        name, code = _TAGS.get(tag), _TYPES.get(kind)
        if name is None or code is None or (code == "s") != (name == "nodata"):
            continue  # a text where a number belongs, and the other way round, is no value
        form = f"{order}{number}{code}"
        place = entry + size - inline
        if struct.calcsize(form) > inline:
            (place,) = struct.unpack_from(order + ("Q" if big else "I"), data, place)
        if struct.calcsize(form) > len(data):
            raise struct.error
        tags[name] = struct.unpack_from(form, data, place)
    (after,) = struct.unpack_from(order + ("Q" if big else "I"), data, at + count * size)
    return tags, after


def _page(tags: dict[str, Any], order: str) -> Page:
    (height,), (width,) = tags["height"], tags["width"]
    check_size(height, width)
    (samples,) = tags.get("samples", (1,))
    bits, kinds = {*tags.get("bits", (1,))}, {*tags.get("format", (1,))}
    kind = _KINDS.get(next(iter(kinds)), "") if len(kinds) == 1 else ""
    known = len(bits) == 1 and bits <= ({16, 32, 64} if kind == "f" else {8, 16, 32, 64})
    if not kind or not known:
        raise ValueError(f"a TIFF of {'/'.join(map(str, sorted(bits)))} bits of an unread kind")
    if not 0 < samples <= _MOST_SAMPLES:
        raise ValueError(f"a TIFF of {samples} bands")
    return Page(tags, height, width, samples, np.dtype(f"{order}{kind}{bits.pop() // 8}"))


def _pixels(data: bytes, page: Page) -> Shaped[np.ndarray, "H W C"]:
    tags = page.tags
    (compression,) = tags.get("compression", (1,))
    if compression not in _COMPRESSIONS:
        known = ", ".join(sorted({*_COMPRESSIONS.values()}))
        raise ValueError(f"a TIFF of compression {compression}, where {known} are read")
    tiled = "tile_offsets" in tags
    kind = "tile" if tiled else "strip"
    offsets, counts = tags[f"{kind}_offsets"], tags[f"{kind}_counts"]
    (across,), rows = tags.get("tile_width", (page.width,)), tags.get("rows_per_strip")
    rows = tags["tile_height"][0] if tiled else min((rows or (page.height,))[0], page.height)
    if min(across, rows) < 1 or across * rows > MAX_PIXELS:
        raise ValueError(f"a TIFF with strips or tiles of {across}x{rows} pixels")
    planes = page.samples if tags.get("planar", (1,))[0] == _PLANES else 1
    each = math.ceil(page.height / rows) * math.ceil(page.width / across)
    if len(offsets) != planes * each or len(counts) != len(offsets):
        raise ValueError("a TIFF that is cut off or damaged")
    if any(at + size > len(data) for at, size in zip(offsets, counts, strict=True)):
        raise ValueError("a TIFF that is cut off")
    inside = page.samples // planes  # samples that lie beside one another
    columns, found = math.ceil(page.width / across), []
    (predictor,) = tags.get("predictor", (1,))
    for plane in range(planes):
        part = slice(plane * each, (plane + 1) * each)
        where = zip(offsets[part], counts[part], strict=True)
        pieces = [data[at : at + size] for at, size in where]
        # Tiles are whole, also at the edges; the last strip ends with the image.
        height = each * rows if tiled else page.height
        raw = _bytes(pieces, height, across * inside * page.dtype.itemsize, rows, compression)
        values = _predicted(raw, page.dtype, inside, predictor)
        values = values.reshape(-1, columns, rows if tiled else height, across, inside)
        values = values.swapaxes(1, 2).reshape(-1, columns * across, inside)
        found.append(values[: page.height, : page.width])
    return found[0] if planes == 1 else np.concatenate(found, axis=2)


def _bytes(
    pieces: list[bytes], height: int, width: int, rows: int, compression: int
) -> UInt8[np.ndarray, "height width"]:
    """Decompress pieces, each of `rows` rows of bytes, the last of what is left of `height`."""
    if _COMPRESSIONS[compression] not in ("none", "deflate"):
        return _by_libtiff(pieces, height, width, rows, compression)
    found = []
    for at, piece in enumerate(pieces):
        size, whole = min(rows, height - at * rows) * width, piece
        if compression != 1:
            zipped = zlib.decompressobj()
            try:  # a byte more than there may be, so that the checksum behind them is read
                whole = zipped.decompress(piece, rows * width + 1)
            except zlib.error as error:
                raise ValueError("a TIFF that is damaged") from error
            if not zipped.eof:
                raise ValueError("a TIFF that is damaged")
        if len(whole) < size:
            raise ValueError("a TIFF that is cut off or damaged")
        found.append(whole[:size])
    return np.frombuffer(b"".join(found), np.uint8).reshape(height, width)


def _by_libtiff(
    pieces: list[bytes], height: int, width: int, rows: int, compression: int
) -> UInt8[np.ndarray, "height width"]:
    """Write the pieces as strips of a grey TIFF and read it; of OpenCV's no error comes out."""
    offsets = list(itertools.accumulate(map(len, pieces), initial=8))
    at = offsets.pop()
    at += at % 2
    lengths = [len(piece) for piece in pieces]
    tags = [(256, [width]), (257, [height]), (258, [8]), (259, [compression]), (262, [1])]
    tags += [(273, offsets), (277, [1]), (278, [rows]), (279, lengths)]
    more = at + 2 + 12 * len(tags) + 4
    directory, behind = struct.pack("<H", len(tags)), b""
    for tag, values in tags:
        place = values[0] if len(values) == 1 else more + len(behind)
        directory += struct.pack("<HHII", tag, 4, len(values), place)
        behind += struct.pack(f"<{len(values)}I", *values) if len(values) > 1 else b""
    body = b"".join(pieces)
    body += b"\0" * (at - 8 - len(body))
    whole = b"".join((b"II*\0", struct.pack("<I", at), body, directory, b"\0" * 4, behind))
    try:
        with Image.open(io.BytesIO(whole), formats=["TIFF"]) as image:
            return np.array(image, np.uint8)
    except Exception as error:  # of broken files Pillow's readers raise anything
        raise ValueError(f"a TIFF that is damaged ({type(error).__name__})") from error


def _predicted(raw: np.ndarray, dtype: np.dtype, inside: int, predictor: int) -> np.ndarray:
    """Return the numbers of rows of bytes, with differences summed; one row of numbers a row."""
    if predictor == _FLOATING:
        # Differences of bytes, of all numbers the most significant first (Adobe's note 3).
        rows = raw.reshape(len(raw), -1, inside)
        summed = np.cumsum(rows, axis=1, dtype=np.uint8).reshape(len(raw), dtype.itemsize, -1)
        return np.ascontiguousarray(summed.transpose(0, 2, 1)).view(dtype.newbyteorder(">"))[..., 0]
    values = np.ascontiguousarray(raw).view(dtype)
    if predictor == _HORIZONTAL:
        whole = np.dtype(f"u{dtype.itemsize}")
        bits = values.view(whole.newbyteorder(dtype.byteorder)).astype(whole)
        bits = bits.reshape(len(raw), -1, inside)
        values = np.cumsum(bits, axis=1, dtype=whole).reshape(len(raw), -1)
        return values.view(dtype.newbyteorder("="))
    if predictor != 1:
        raise ValueError(f"a TIFF of predictor {predictor}")
    return values
