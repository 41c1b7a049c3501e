# SPDX-License-Identifier: Apache-2.0
"""Boxes and masks of an image's segments, each of a class: what is left of them, and drawn.

A box that lies partly outside of its image is clipped; an empty one, and one wholly outside, is
left out; both are counted before the first step. Where most segments have a mask, those without
one are left out; where most have none, all are boxes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.account import Said
from vit_jax.data.images import header
from vit_jax.data.images.target_ops import painted
from vit_jax.data.sources.dense.annotated import Checked, counted
from vit_jax.data.sources.dense.raster import box_of, corners_of, mask_of
from vit_jax.data.sources.dense.shape import Shape
from vit_jax.data.targets import IGNORED, PixelTarget, TargetKind
from vit_jax.errors import UserError, shown

EMPTY = "empty, and left out"
OUTSIDE = "wholly outside of their image, and left out"
CLIPPED = "partly outside of their image, and clipped"
NO_MASK = "of a mask that cannot be drawn, and left out"
MASKLESS = "without a mask, where others have one, and left out"
OTHER_SIZE = "annotated at another size"
BACKGROUND = "background"
_SLACK = 1.0  # pixels that a box may lie outside before it is said: others round
_SMALL = 16.0  # pixels of a box whose mask may well have none


class Record(NamedTuple):
    """What a file says of an image's segments.

    Attributes:
        boxes: (left, top, right, bottom) of each, in pixels or, with `shares`, of the image.
        classes: of each.
        crowd: of each; () is none.
        masks: of each, as COCO's "segmentation"; None is no mask; () is none at all. Polygons are
            shares where the boxes are.
        size: (height, width) for which this is written; () where it does not say.
        shares: whether numbers are shares of the image's sides.
    """

    boxes: list[list[float]]
    classes: list[int]
    crowd: Sequence[bool] = ()
    masks: Sequence[Any] = ()
    size: Sequence[int] = ()
    shares: bool = False


class SegmentRecords:
    """The segments of many images; see `Annotations`.

    Attributes:
        has_masks: whether segments are masks, and not boxes alone; known once they are checked.
    """

    def __init__(
        self, records: Iterable[Record], names: Sequence[str], names_of: Sequence[str]
    ) -> None:
        """Take a record of each image, the classes' names, and the images' names."""
        rows = [json.dumps(each, separators=(",", ":")).encode() for each in records]
        self._data, self._ends = b"".join(rows), np.cumsum([0, *map(len, rows)])
        self.classes: tuple[str, ...] = tuple(names)
        self.things: tuple[bool, ...] = ()
        self._names = names_of  # only for `check`
        self.has_masks = False
        self._background = -1  # the class of pixels of no segment

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_names": ()}

    def record(self, row: int) -> Record:
        """Return what is written of an image."""
        return Record(*json.loads(self._data[self._ends[row] : self._ends[row + 1]]))

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """See `Annotations`."""
        bad: dict[int, str] = {}
        told: list[tuple[str, str]] = []
        records = {row: self.record(row) for row in rows}
        with_mask = sum(each is not None for r in records.values() for each in r.masks)
        total = sum(len(record.classes) for record in records.values())
        self.has_masks = 2 * with_mask > total
        counts: Counter[int] = Counter()
        for row, record in records.items():
            shape = shapes.get(row)
            if shape is None and not record.size:  # in a bucket: nothing is known of its size
                counts.update(record.classes)
                continue
            size = _size(record, shape)
            if shape and size not in (shape.size, shape.stored):
                bad[row] = OTHER_SIZE
                continue
            kept, faults = self._kept(record, size)
            told += [(why, shown(self._names[row])) for why in faults]
            counts.update(record.classes[i] for i in kept)
        notes = counted(told, "segment" if self.has_masks else "box")
        if with_mask and not self.has_masks:
            notes.append(f"{with_mask:,} of {total:,} segments have a mask: all are taken as boxes")
        empty = [name for k, name in enumerate(self.classes) if not counts[k]]
        if empty and kind is TargetKind.SEGMENTS:
            listed = ", ".join(map(repr, empty[:3])) + (", ..." if len(empty) > 3 else "")
            many = f"{len(empty):,} classes ({listed})" if len(empty) > 1 else f"class {listed}"
            notes.append(f"no segments of {many}")
        without = sum(not records[row].classes for row in records if row not in bad)
        if without:
            notes.append(Said(f"{without:,} of {len(records):,} images have no segments"))
        if kind is TargetKind.PIXELS:
            if not self.has_masks:
                what = "its segments are boxes, which say nothing of the class of each pixel"
                raise UserError(f"{what}; learn segments, or give polygons or masks")
            names = list(self.classes)
            self._background = names.index(BACKGROUND) if BACKGROUND in names else len(names)
            self.classes = self.classes if BACKGROUND in names else (*names, BACKGROUND)
            notes.append(Said(f"pixels of no segment are of the class {BACKGROUND!r}"))
        return Checked(bad, notes)

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        record = self.record(row)
        size = _size(record, shape)
        if size not in (shape.size, shape.stored):
            of = "{}x{}, its annotations {}x{}".format(*shape.size, *size)
            raise ValueError(f"is {of} (height x width)")
        kept, _ = self._kept(record, size)
        boxes = _boxes(record, size)[kept]
        classes = np.array([record.classes[i] for i in kept], np.int32)
        crowd = np.array([bool(record.crowd and record.crowd[i]) for i in kept], bool)
        masks = None
        if self.has_masks:
            masks = np.zeros((len(kept), *size), bool)
            for at, i in enumerate(kept):
                masks[at] = _mask(record, i, size)
            some = masks.any((1, 2))
            boxes, classes, crowd, masks = boxes[some], classes[some], crowd[some], masks[some]
        found = PixelTarget(
            size=size,
            boxes=boxes.astype(np.float32),
            masks=masks,
            classes=classes,
            crowd=crowd,
        )
        if kind is not TargetKind.PIXELS:
            return found
        label_map = painted(found)
        label_map[label_map == IGNORED] = self._background
        return PixelTarget(size=size, label_map=label_map)

    def digest(self, row: int) -> bytes:
        """See `Annotations`."""
        written = self._data[self._ends[row] : self._ends[row + 1]]
        return hashlib.blake2b(written, digest_size=16).digest()

    def _kept(self, record: Record, size: tuple[int, int]) -> tuple[list[int], list[str]]:
        """Return which segments are used, and what is wrong with each that has a fault."""
        kept, faults = [], []
        if not record.classes:
            return kept, faults
        raw = _boxes(record, size, clipped=False)
        boxes = _boxes(record, size)
        sides = raw[:, 2:] - raw[:, :2]
        inside = boxes[:, 2:] - boxes[:, :2]
        moved = np.abs(raw - boxes).max(1) > _SLACK
        for i in range(len(raw)):
            if not (np.isfinite(raw[i]).all() and (sides[i] > 0).all()):
                faults.append(EMPTY)
            elif not (inside[i] > 0).all():
                faults.append(OUTSIDE)
            elif self.has_masks and (why := _unfit(record, i, size, inside[i])):
                faults.append(why)
            else:
                kept.append(i)
                faults += [CLIPPED] * bool(moved[i])
        return kept, faults


def _size(record: Record, shape: Shape | None) -> tuple[int, int]:
    if record.size:
        height, width = record.size
        return height, width
    assert shape is not None
    return shape.size


def _boxes(record: Record, size: tuple[int, int], *, clipped: bool = True) -> np.ndarray:
    """Return (n, 4) boxes in pixels, float64."""
    height, width = size
    found = np.array(record.boxes, np.float64).reshape(-1, 4)
    if record.shares:
        found = found * [width, height, width, height]
    return np.clip(found, 0, [width, height, width, height]) if clipped else found


def _unfit(record: Record, i: int, size: tuple[int, int], sides: np.ndarray) -> str:
    """Return why a segment's mask cannot be used, "" where it can; a large one is not drawn."""
    given = record.masks[i] if i < len(record.masks) else None
    if given is None:
        return MASKLESS
    try:
        if isinstance(given, dict):
            told = given.get("size", list(size))
            return NO_MASK if list(told) != list(size) else ""
        for flat in given:
            corners_of(flat)
        small = float(sides[0] * sides[1]) < _SMALL
        return EMPTY if small and not _mask(record, i, size).any() else ""
    except (ValueError, TypeError):
        return NO_MASK


def _mask(record: Record, i: int, size: tuple[int, int]) -> np.ndarray:
    given = record.masks[i]
    if record.shares and not isinstance(given, dict):
        height, width = size
        given = [(corners_of(flat) * [width, height]).ravel() for flat in given]
    return mask_of(given, size)


def bounds(segmentation: Any, size: Sequence[int]) -> list[float]:
    """Return (left, top, right, bottom) of a mask as COCO has it, zeros where there is none.

    `size` is (height, width), () where it is not known.
    """
    try:
        if isinstance(segmentation, list) and segmentation:
            corners = np.concatenate([corners_of(flat) for flat in segmentation])
            return [*corners.min(0).tolist(), *corners.max(0).tolist()]
        if isinstance(segmentation, dict):
            height, width = map(int, segmentation.get("size", size))
            header.check_size(height, width)  # nobody has compared it with the image's
            return list(box_of(mask_of(segmentation, (height, width))))
    except (ValueError, TypeError, OverflowError):
        pass
    return [0.0, 0.0, 0.0, 0.0]
