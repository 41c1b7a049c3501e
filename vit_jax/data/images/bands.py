# SPDX-License-Identifier: Apache-2.0
"""Images of any number of channels and of 8 or 16 bits or floats: the one reader, and their look.

A file is a TIFF, a PNG or an array of NumPy's; several, a band each, are packed as a zip archive,
of which an .npz is one too. docs/channels.md has the rules.
"""

import contextlib
import io
import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import cv2
import numpy as np
from jaxtyping import Float32, Num, UInt8, UInt16

from vit_jax.data.config import PixelType, Reading
from vit_jax.data.images import header, tiff
from vit_jax.errors import some

ALL = ("all",)
SUFFIXES = (".tif", ".tiff", ".npy", ".npz", ".png")
Pixels: TypeAlias = (
    UInt8[np.ndarray, "H W C"] | UInt16[np.ndarray, "H W C"] | Float32[np.ndarray, "H W C"]
)
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
_STRETCH = (2, 98)  # percentiles that a picture shows as black and white
_MOST_BYTES = 1 << 31  # of the numbers of one image


class Stored(NamedTuple):
    """The bands of an image as its file has them.

    Attributes:
        pixels: [H, W, n], in the file's dtype.
        nodata: the number that stands for no measurement, as GDAL writes it into a TIFF.
    """

    pixels: Num[np.ndarray, "H W n"]
    nodata: float | None = None


class BandFacts(NamedTuple):
    """What a file says of its numbers: the dtype, and how many bands it has."""

    dtype: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} band{'s' * (self.count != 1)} of {self.dtype}"


def by_name(bands: Sequence[str]) -> bool:
    """Return whether `data.bands` names files of one band each, and no numbers in a file."""
    return tuple(bands) != ALL and not all(each.isdecimal() for each in bands)


def read(data: bytes, channels: int, reading: Reading) -> Pixels:
    """Read the bands that `reading` names, in its dtype and order.

    Args:
        data: the file, or several in one (`pack`).
        channels: how many bands are expected; 0 is any number.
        reading: `bands` and `dtype` of the data's config.

    Raises ValueError: no file that is read here, other bands, another dtype, values that are not
        finite.
    """
    pixels = load(data, reading.bands, channels).pixels
    kind = pixel_type(pixels.dtype)
    if kind is not reading.dtype:
        holds = f"holds {pixels.dtype}, where data.dtype is {reading.dtype}"
        raise ValueError(f"{holds}; set data.dtype={kind}, if all files do")
    if channels and pixels.shape[2] != channels:
        holds = f"has {pixels.shape[2]} bands, where the model takes {channels}"
        how = f"set model.channels={pixels.shape[2]}, or name {channels} in data.bands"
        raise ValueError(f"{holds}; {how}")
    check_finite(pixels)
    return np.ascontiguousarray(pixels, np.dtype(kind.value))


def check_finite(pixels: np.ndarray) -> None:
    """Raise ValueError, with their number, for values that are NaN or infinite."""
    if pixels.dtype.kind == "f" and (wrong := int((~np.isfinite(pixels)).sum())):
        raise ValueError(f"{wrong:,} of {pixels.size:,} values are NaN or infinite; fill them")


def load(data: bytes, bands: Sequence[str], channels: int = 0) -> Stored:
    """Read bands as they are stored, also where they are not finite or of an unread dtype.

    Bands of several sizes are brought to the largest, bilinearly. `channels` tells which axis of an
    array of NumPy's the bands are; 0 takes the last one, but the first where that is shorter.

    Raises ValueError: as `read`.
    """
    if data.startswith(_ZIP):
        return _chosen(_members(data, bands), bands)
    found = _one(data, channels if tuple(bands) == ALL else 0)
    if tuple(bands) == ALL:
        return found
    if by_name(bands):
        what = f"one file of {found.pixels.shape[2]} bands without names"
        raise ValueError(f"{what}; give data.bands their numbers, from 0, or all")
    numbers = [int(each) for each in bands]
    if max(numbers) >= found.pixels.shape[2]:
        raise ValueError(f"has {found.pixels.shape[2]} bands, and none of number {max(numbers)}")
    return found._replace(pixels=found.pixels[..., numbers])


def facts(data: bytes, bands: Sequence[str]) -> BandFacts:
    """Read what a file says of its numbers; of a TIFF and an array without decoding the rest.

    Raises ValueError: as `read`.
    """
    if data.startswith(tiff.MAGIC):
        pages = tiff.pages(data)
        return BandFacts(pages[0].dtype.newbyteorder("=").name, sum(page.samples for page in pages))
    if data.startswith(_NPY):
        shape, _, dtype, _ = _described(data)
        axis = 2 if _is_last(shape, 0) else 0
        return BandFacts(dtype.newbyteorder("=").name, shape[axis] if len(shape) == 3 else 1)
    found = load(data, bands if data.startswith(_ZIP) else ALL).pixels
    return BandFacts(found.dtype.name, found.shape[2])


def pixel_type(dtype: np.dtype) -> PixelType:
    """Return the dtype of batches of what a file holds: its own, else float32.

    Raises ValueError: no numbers.
    """
    with contextlib.suppress(ValueError):
        return PixelType(dtype.name)
    if dtype.kind not in "iuf":
        raise ValueError(f"holds {dtype}, and no pixels")
    return PixelType.FLOAT32


def pack(files: Mapping[str, bytes]) -> bytes:
    """Put the files of an image's bands into one, as `read` takes it; their names are the keys."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):  # and no time of writing: equal bands give equal bytes
            archive.writestr(zipfile.ZipInfo(name), files[name])
    return packed.getvalue()


def packed_folder(folder: str | Path, bands: Sequence[str]) -> bytes:
    """Read the files of an image's bands and `pack` them.

    Raises ValueError: a band without a file, or with two; OSError.
    """
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    chosen = members_of(names, bands)
    return pack({name: header.read_file(Path(folder, name)) for name in chosen})


def members_of(names: Sequence[str], bands: Sequence[str]) -> list[str]:
    """Choose the file of each band by its name: B02.tif, or what ends so, NAME_B02.tif.

    Raises ValueError: a band without a file, or with two.
    """
    files = [name for name in names if name.lower().endswith(SUFFIXES)]
    found = []
    for band in bands:
        fits = [name for name in files if band in (_stem(name), _last(name))]
        if not fits:
            lacks = f"it has {some([*map(_last, files)])}" if files else "it has no files of bands"
            raise ValueError(f"lacks the band {band}; {lacks}")
        if len(fits) > 1:
            raise ValueError(f"has {len(fits)} files of the band {band}: {some(fits)}")
        found += fits
    return found


def examples(files: Sequence[str], bands: Sequence[str]) -> list[str]:
    """Return the images that files are: each its own, or of named bands the folders they lie in."""
    if not by_name(bands):
        return list(files)
    alone = [name if name.endswith(".npz") else os.path.dirname(name) or "." for name in files]
    return list(dict.fromkeys(alone))


def as_file(array: np.ndarray) -> bytes:
    """Return an array as the bytes of a file that `read` takes."""
    written = io.BytesIO()
    np.lib.format.write_array(written, array, allow_pickle=False)
    return written.getvalue()


def picture(
    pixels: Num[np.ndarray, "H W C"], shown: Sequence[int] = ()
) -> UInt8[np.ndarray, "H W c"]:
    """Return a picture, grey or RGB, of an image of any channels and dtype.

    Args:
        pixels: the image; one of 8 bits that is grey or RGB is its own picture.
        shown: which channels are red, green and blue, or which one is grey; () is the first three,
            or the first. Each of 16 bits or of floats is stretched so that 2 % of its pixels are
            black and 2 % white.
    """
    channels = pixels.shape[2]
    if not shown:
        shown = (0, 1, 2) if channels >= 3 else (0,)
    chosen = pixels[..., [min(each, channels - 1) for each in shown]]
    if chosen.dtype == np.uint8:
        return pixels if tuple(shown) == tuple(range(channels)) else chosen
    values = chosen.astype(np.float32)
    finite = np.where(np.isfinite(values), values, np.nan)
    if np.isnan(finite).all():
        return np.zeros(chosen.shape, np.uint8)
    low, high = np.nanpercentile(finite, _STRETCH, axis=(0, 1))
    scaled = (np.nan_to_num(finite) - low) / np.maximum(high - low, 1e-12)
    return np.rint(255 * scaled.clip(0, 1)).astype(np.uint8)


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


def _last(name: str) -> str:
    return _stem(name).rpartition("_")[2]


def _natural(name: str) -> list[tuple[int, str]]:
    """Order B2 before B10, and B8A between B8 and B9."""
    parts = re.split(r"(\d+)", _stem(name))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _members(data: bytes, bands: Sequence[str]) -> dict[str, Stored]:
    """Read the files of an archive by the names of their bands, those of `bands` or all."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            names = sorted((n for n in sizes if n.lower().endswith(SUFFIXES)), key=_natural)
            chosen = names if tuple(bands) == ALL else members_of(names, bands)
            if sum(sizes[name] for name in chosen) > _MOST_BYTES:
                raise ValueError(f"an archive of more than {_MOST_BYTES >> 30} GiB")
            files = {name: archive.read(name) for name in chosen}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"an archive that is damaged ({error})") from error
    if not files:
        raise ValueError("an archive without a file of a band")
    return {name: _one(each, 0) for name, each in files.items()}


def _chosen(found: Mapping[str, Stored], bands: Sequence[str]) -> Stored:
    """Put the bands of several files together, in the order of the mapping."""
    arrays = [each.pixels for each in found.values()]
    for name, array in zip(found, arrays, strict=True):
        if tuple(bands) != ALL and array.shape[2] != 1:
            raise ValueError(f"{name} holds {array.shape[2]} bands, where it should be one")
    if len({array.dtype for array in arrays}) > 1:
        kinds = sorted({array.dtype.name for array in arrays})
        raise ValueError(f"bands of several dtypes ({', '.join(kinds)})")
    size = max(array.shape[:2] for array in arrays)
    whole = np.concatenate([_brought(array, size) for array in arrays], axis=2)
    return Stored(whole, next((x.nodata for x in found.values() if x.nodata is not None), None))


def _brought(array: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if array.shape[:2] == size:
        return array
    if array.dtype.name not in ("uint8", "uint16", "int16", "float32", "float64"):
        raise ValueError(f"bands of several sizes, which {array.dtype} is not brought to one from")
    each = [cv2.resize(band, size[::-1]) for band in np.moveaxis(array, 2, 0)]
    return np.stack(each, axis=2)


def _one(data: bytes, channels: int) -> Stored:
    """Read a file that holds one array."""
    if data.startswith(tiff.MAGIC):
        return Stored(tiff.read(data), tiff.nodata(tiff.pages(data)[0]))
    if data.startswith(_NPY):
        return Stored(_bands_last(numpy_array(data), channels))
    if data.startswith(header.PNG) and header.png_chunks(data) is not None:
        header.check_size(*(header.image_size(data) or (0, 0)))
        found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if found is not None:
            pixels = found if found.ndim == 3 else found[..., None]
            order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(pixels.shape[2])  # OpenCV has blue first
            return Stored(pixels if order is None else pixels[..., order])
    if not data:
        raise ValueError("the file is empty")
    raise ValueError(f"no file of bands ({', '.join(SUFFIXES)})")


def _described(data: bytes, kinds: str = "iuf") -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Return shape, order, dtype and where the numbers begin, of an .npy."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = read_header(file)
    except (ValueError, KeyError, EOFError, SyntaxError) as error:
        raise ValueError("an .npy with a broken header") from error
    if dtype.hasobject or dtype.kind not in kinds:
        raise ValueError(f"an .npy of {dtype}, which are no pixels")
    if len(shape) not in (2, 3):
        raise ValueError(f"an array of shape {shape}, which has no height, width and bands")
    return shape, by_columns, dtype, file.tell()


def numpy_array(data: bytes, kinds: str = "iuf") -> np.ndarray:
    """Read an .npy of two or three axes, whose header must not claim more than the file has.

    `kinds` are the numbers that it may hold, as in `np.dtype.kind`. Raises ValueError.
    """
    shape, by_columns, dtype, start = _described(data, kinds)
    count = math.prod(shape)
    if count * dtype.itemsize > len(data) - start:
        raise ValueError("an .npy that is cut off")
    flat = np.frombuffer(data, dtype, count, start)
    array = flat.reshape(shape, order="F" if by_columns else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def _is_last(shape: tuple[int, ...], channels: int) -> bool:
    """Return whether the last axis has the bands: the shorter one, unless one is as expected."""
    if len(shape) == 2:
        return True
    first, _, last = shape
    return first != channels or last == channels if channels in (first, last) else last <= first


def _bands_last(array: np.ndarray, channels: int) -> np.ndarray:
    """Return an array [H, W], [H, W, n] or [n, H, W] as [H, W, n]."""
    if not _is_last(array.shape, channels):
        array = np.moveaxis(array, 0, 2)
    array = array[..., None] if array.ndim == 2 else array
    header.check_size(*array.shape[:2])
    return array
