# SPDX-License-Identifier: Apache-2.0
"""Mean and standard deviation of each channel of a split's stored pixels, in one pass.

Whole numbers are summed without rounding. Floats are summed in float64 about each image's own mean,
and images joined by Chan, Golub and LeVeque's formula (1979), in the order of the split.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.config import WHITE, PixelType
from vit_jax.data.images import bands as bands_lib
from vit_jax.data.images.bands import Stored
from vit_jax.data.images.decode import decode
from vit_jax.data.sources.base import Source
from vit_jax.errors import UserError, setting, shown
from vit_jax.process import waiting

_CHUNK = 256  # images in work
_FIRST = 3  # names of unreadable images that are shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """What was measured, in units where `config.WHITE` is 1.

    Attributes:
        name: the split, for messages.
        mean, std: of each channel; the deviation is that of all values, not an estimate.
        dtype: of the files.
        bands: as `DataConfig.bands`.
        images: how many were measured.
        values: of each channel.
        nodata: values of each channel that were left out: the number for no data, or not finite.
        unread: (name, reason) of the images that were left out.
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: PixelType
    bands: tuple[str, ...]
    images: int
    values: int
    nodata: tuple[int, ...]
    unread: tuple[tuple[str, str], ...] = ()

    def lines(self) -> list[str]:
        """Return what was measured and left out, and the flags that a run takes."""
        count = len(self.mean)
        of = f"{self.images:,} images of {count} channel{'s' * (count > 1)} of {self.dtype}"
        found = [f"{self.name}: {of}, {self.values:,} values of each channel"]
        if any(self.nodata):
            most = max(range(count), key=self.nodata.__getitem__)
            share = (
                f"{self.nodata[most]:,} ({self.nodata[most] / self.values:.2%}) of channel {most}"
            )
            found.append(f"{sum(self.nodata):,} values are no data, at most {share}; left out")
        if self.unread:
            first = "; ".join(f"{shown(name)}: {why}" for name, why in self.unread[:_FIRST])
            found.append(f"{len(self.unread):,} images are left out ({first})")
        numbers = {"mean": self.mean, "std": self.std}
        flags = (
            setting(f"config.data.{key}={','.join(f'{x:.6g}' for x in each)}")
            for key, each in numbers.items()
        )
        return [*found, " ".join(flags)]

    def json(self) -> str:
        """Return what `data.statistics` reads."""
        found = {
            "mean": self.mean,
            "std": self.std,
            "dtype": self.dtype.value,
            "bands": self.bands,
            "images": self.images,
            "values": self.values,
            "nodata": self.nodata,
            "unread": len(self.unread),
        }
        return json.dumps(found, indent=2) + "\n"


class _Sums(NamedTuple):
    """For each channel the number of values, their sum and the sum of their squares.

    For floats, whose sums would round, `first` is the mean and `second` the sum of squared
    differences from it.
    """

    count: list[int]
    first: list[int] | list[float]
    second: list[int] | list[float]


class _Measured(NamedTuple):
    dtype: PixelType
    size: int  # values of a channel, nodata included
    sums: _Sums


def measure(
    source: Source,
    bands: Sequence[str] = (),
    *,
    channels: int = 3,
    nodata: float | None = None,
    num_threads: int = 1,
) -> Statistics:
    """Measure all images of a split as they are stored, before any crop or resizing.

    Args:
        source: the split.
        bands: as `DataConfig.bands`; () is pictures.
        channels: of pictures, 1 or 3.
        nodata: a value that is no measurement and is left out; of TIFFs with GDAL's tag, that too.
            What is not finite is always left out.
        num_threads: images read at the same time.

    Raises UserError: no image that can be read, a channel without a value.
    """
    total: _Sums | None = None
    dtype, images, size, without = PixelType.UINT8, 0, 0, [0]
    unread: list[tuple[str, str]] = []
    for index, found in _all(source, bands, channels, nodata, num_threads):
        if isinstance(found, str):
            unread.append((source.example_id(index), found))
            continue
        if total is None:
            total, dtype, without = found.sums, found.dtype, [0] * len(found.sums.count)
        elif (found.dtype, len(found.sums.count)) != (dtype, len(total.count)):
            has = f"{len(found.sums.count)} channels of {found.dtype}"
            why = f"has {has}, the first {len(total.count)} of {dtype}"
            unread.append((source.example_id(index), why))
            continue
        else:
            total = _joined(total, found.sums, dtype)
        images, size = images + 1, size + found.size
        pairs = zip(without, found.sums.count, strict=True)
        without = [so_far + found.size - count for so_far, count in pairs]
    if total is None:
        first = f": {unread[0][0]}: {unread[0][1]}" if unread else ""
        raise UserError(f"{source.name}: no image can be read{first}")
    if empty := [i for i, count in enumerate(total.count) if not count]:
        raise UserError(f"{source.name}: the channels {empty} hold no data; leave them out")
    mean, std = zip(*map(_moments, *total, [dtype] * len(total.count)), strict=True)
    return Statistics(
        name=source.name,
        mean=mean,
        std=std,
        dtype=dtype,
        bands=tuple(bands),
        images=images,
        values=size,
        nodata=tuple(without),
        unread=tuple(unread),
    )


def _all(
    source: Source, bands: Sequence[str], channels: int, nodata: float | None, num_threads: int
) -> Iterator[tuple[int, _Measured | str]]:
    def of(index: int) -> _Measured | str:
        try:
            data = source.read(index)["image"]
            if bands:
                return _sums(bands_lib.load(data, bands), nodata)
            return _sums(Stored(decode(data, channels)), nodata)
        except (ValueError, OSError) as error:
            return " ".join(str(error).split())[:200] or type(error).__name__

    with (
        waiting.counted(f"measuring {source.name}", len(source)) as done,
        ThreadPoolExecutor(num_threads) as pool,
    ):
        for start in range(0, len(source), _CHUNK):
            chunk = range(start, min(start + _CHUNK, len(source)))
            yield from zip(chunk, pool.map(of, chunk), strict=True)
            done(len(chunk))


def _sums(stored: Stored, nodata: float | None) -> _Measured:
    """Return the sums of an image."""
    kind = bands_lib.pixel_type(stored.pixels.dtype)
    nothing = [each for each in (nodata, stored.nodata) if each is not None]
    if stored.pixels.dtype.kind == "f":  # as the file can hold it: 0.1 of 32 bits is not 0.1
        with np.errstate(over="ignore"):
            nothing = [float(stored.pixels.dtype.type(each)) for each in nothing]
    whole = kind is not PixelType.FLOAT32
    counts, firsts, seconds = [], [], []
    for channel in np.moveaxis(stored.pixels, 2, 0):
        values = channel.reshape(-1)
        if not whole:
            values = values.astype(np.float64)
            values = values[np.isfinite(values)]
        for each in nothing:
            values = values[values != each]
        counts.append(len(values))
        if whole:
            values = values.astype(np.uint64)  # squares of 16 bits, of 2^32 pixels
            firsts.append(int(values.sum()))
            seconds.append(int((values * values).sum()))
        else:
            mean = float(values.mean()) if len(values) else 0.0
            firsts.append(mean)
            seconds.append(float(np.square(values - mean).sum()))
    size = stored.pixels.shape[0] * stored.pixels.shape[1]
    return _Measured(kind, size, _Sums(counts, firsts, seconds))


def _joined(one: _Sums, two: _Sums, dtype: PixelType) -> _Sums:
    if dtype is not PixelType.FLOAT32:
        both = zip(one.count, two.count, strict=True)
        return _Sums([a + b for a, b in both], *map(_added, one[1:], two[1:]))
    counts: list[int] = []
    means: list[float] = []
    squares: list[float] = []
    for n, m, mean, square, other, more in zip(
        one.count, two.count, one.first, one.second, two.first, two.second, strict=True
    ):
        total, apart = n + m, other - mean
        counts.append(total)
        means.append(mean + apart * m / total if total else 0.0)
        squares.append(square + more + apart * apart * n * m / total if total else 0.0)
    return _Sums(counts, means, squares)


def _added(one: Sequence[Any], two: Sequence[Any]) -> list[Any]:
    return [a + b for a, b in zip(one, two, strict=True)]


def _moments(
    count: int, first: int | float, second: int | float, dtype: PixelType
) -> tuple[float, float]:
    """Return mean and deviation in units of white."""
    white = WHITE[dtype]
    if dtype is PixelType.FLOAT32:
        return first, math.sqrt(second / count)
    variance = Fraction(int(second), count) - Fraction(int(first), count) ** 2
    return float(Fraction(int(first), count) / white), math.sqrt(variance) / white
