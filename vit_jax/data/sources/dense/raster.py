# SPDX-License-Identifier: Apache-2.0
"""Polygons and run lengths to masks, pixel for pixel as COCO's own tools have them.

The format is https://cocodataset.org/#format-data: runs of zeros and ones down the columns, as a
list of numbers or packed into a text of 6 bits a character. A polygon is drawn on a grid five times
as fine; its outline is sampled there, and a pixel's column changes at each crossing of its middle.
"""

import itertools
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

_FINER = 5  # samples of a pixel's side


def polygon(corners: Float[np.ndarray, "k 2"], size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """Fill a polygon, given by its corners (x, y) in pixels, in a mask of (h, w)."""
    height, width = size
    points = (_FINER * corners + 0.5).astype(np.int64)  # towards 0, as C has it
    start, stop = points, np.roll(points, -1, axis=0)
    # Each edge is walked along its longer side, from the lower end, so that an edge which two
    # polygons share has the same samples in both.
    delta = np.abs(stop - start)
    along = np.where(delta[:, 0] >= delta[:, 1], 0, 1)
    edges = np.arange(len(points))
    flipped = start[edges, along] > stop[edges, along]
    first = np.where(flipped[:, None], stop, start)
    last = np.where(flipped[:, None], start, stop)
    length = delta[edges, along]
    rise = (last - first)[edges, 1 - along] / np.maximum(length, 1)
    counts = length + 1
    edge = np.repeat(edges, counts)
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    step = np.where(flipped[edge], length[edge] - step, step)
    samples = np.empty((len(edge), 2), np.int64)
    rows = np.arange(len(edge))
    samples[rows, along[edge]] = first[edge, along[edge]] + step
    across = first[edge, 1 - along[edge]] + rise[edge] * step + 0.5
    samples[rows, 1 - along[edge]] = across.astype(np.int64)
    before, after = samples[:-1], samples[1:]
    moved = before[:, 0] != after[:, 0]
    before, after = before[moved], after[moved]
    x = np.where(after[:, 0] < before[:, 0], after[:, 0], after[:, 0] - 1)
    x = (x + 0.5) / _FINER - 0.5
    y = (np.minimum(before[:, 1], after[:, 1]) + 0.5) / _FINER - 0.5
    inside = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    columns = x[inside].astype(np.int64)
    starts = np.ceil(np.clip(y[inside], 0, height)).astype(np.int64)
    turns = np.bincount(columns * height + starts, minlength=height * width + 1)
    filled = (np.cumsum(turns[: height * width]) & 1).astype(bool)
    return filled.reshape(width, height).T


def runs(counts: Any, size: tuple[int, int]) -> Any:
    """Unpack run lengths, of zeros first, into a mask of (h, w).

    Raises ValueError: they are no lengths, or are not as many as the mask has pixels.
    """
    found = np.asarray(counts)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ValueError("the run lengths of a mask are no list of whole numbers")
    height, width = size
    if (found < 0).any() or int(found.sum()) != height * width:
        total = f"{int(found.sum()):,} pixels in all"
        raise ValueError(f"the run lengths of a mask have {total}, and the image {width}x{height}")
    bits = np.repeat(np.arange(len(found)) % 2 == 1, found)
    return bits.reshape(width, height).T


def unpacked(text: str | bytes) -> Int[np.ndarray, " n"]:
    """Return the run lengths in COCO's text: 5 bits a character, from the third a difference.

    Raises ValueError: a character that cannot be in one, or a text that is cut off.
    """
    data = text.encode("latin-1", "replace") if isinstance(text, str) else text
    values = np.frombuffer(data, np.uint8).astype(np.int64) - 48
    if len(values) and (values.min() < 0 or values.max() > 63 or values[-1] & 32):
        raise ValueError("the run lengths of a mask are no text that COCO's tools write")
    found: list[int] = []
    number = shift = 0
    for value in values.tolist():
        number |= (value & 31) << shift
        shift += 5
        if value & 32:
            if shift > 40:
                raise ValueError("the run lengths of a mask are no text that COCO's tools write")
            continue
        if value & 16:
            number -= 1 << shift
        found.append(number + (found[-2] if len(found) > 2 else 0))
        number = shift = 0
    return np.array(found, np.int64)


def mask_of(segmentation: Any, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """Return the mask of a "segmentation" of COCO's: polygons, or run lengths packed or not.

    Raises ValueError: it is neither, or of an image of another size.
    """
    if isinstance(segmentation, dict):
        told = segmentation.get("size")
        if isinstance(told, list) and tuple(told) != tuple(size):
            has = "x".join(map(str, reversed(told)))
            raise ValueError(f"a mask is {has}, and its image {size[1]}x{size[0]}")
        counts = segmentation.get("counts")
        if isinstance(counts, str | bytes):
            counts = unpacked(counts)
        if not isinstance(counts, list | np.ndarray):
            raise ValueError("a mask has no run lengths")
        return runs(counts, size)
    found = np.zeros(size, bool)
    for flat in segmentation if isinstance(segmentation, list) else [None]:
        found |= polygon(corners_of(flat), size)
    return found


def corners_of(flat: Any) -> Float[np.ndarray, "k 2"]:
    """Return the corners of a polygon as COCO lists it, x and y in turn.

    Raises ValueError: less than three corners, or no finite numbers.
    """
    try:
        corners = np.asarray(flat, np.float64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("a polygon is no list of numbers, x and y in turn") from None
    if len(corners) < 3:
        raise ValueError(f"a polygon has {len(corners)} corners, which is none")
    if not np.isfinite(corners).all() or np.abs(corners).max() > 1e6:
        raise ValueError("a polygon has corners that are no finite numbers of pixels")
    return corners


def box_of(mask: Bool[np.ndarray, "h w"]) -> tuple[float, float, float, float]:
    """Return (left, top, right, bottom) of a mask's pixels, zeros of an empty one."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0.0, 0.0, 0.0, 0.0
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def packed(mask: Bool[np.ndarray, "h w"]) -> list[int]:
    """Return the run lengths of a mask, of zeros first."""
    flat = mask.T.ravel()
    ends = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), flat.size]
    lengths = [stop - start for start, stop in itertools.pairwise(ends)]
    return [0, *lengths] if flat.size and flat[0] else lengths


def packed_text(mask: Bool[np.ndarray, "h w"]) -> str:
    """Return the run lengths of a mask in COCO's text, which `unpacked` reads."""
    lengths = packed(mask)
    text = bytearray()
    for i, length in enumerate(lengths):
        number = length - (lengths[i - 2] if i > 2 else 0)
        more = True
        while more:
            low, number = number & 31, number >> 5
            more = number != (-1 if low & 16 else 0)
            text.append(48 + low + 32 * more)
    return text.decode()
