# SPDX-License-Identifier: Apache-2.0
"""Targets in columns of Parquet files: masks, depth maps, and objects with boxes and classes.

`parquet:PATTERN?mask=COLUMN`, `?objects=COLUMN`, `?depth=COLUMN`, and so of `hf:`; a run that
learns from pixels finds columns of usual names by itself. A mask or a depth map is an image, as in
its own file. Objects are as the Hub has them: lists of bbox and of category, or a list of structs
of these (https://huggingface.co/docs/datasets/object_detection). Their boxes are (x, y, width,
height); where many would leave their images so, they are (left, top, right, bottom), which is said.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.account import Said, left_out
from vit_jax.data.names import class_names
from vit_jax.data.sources import look
from vit_jax.data.sources.base import Example, Labelled, Source, digest_of
from vit_jax.data.sources.dense import annotated, depth, ids
from vit_jax.data.sources.dense.annotated import Annotations, Checked
from vit_jax.data.sources.dense.facts import measured
from vit_jax.data.sources.dense.ids import Ids, ids_of, read_mask
from vit_jax.data.sources.dense.segments import Record, SegmentRecords
from vit_jax.data.sources.dense.shape import Shape, fitted, shape_of
from vit_jax.data.sources.partition import options
from vit_jax.data.sources.sharded import shards
from vit_jax.data.sources.sharded.parquet_files import NO_LABEL, ParquetSource, opened_file
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import DataError, UserError, shown, unknown
from vit_jax.storage import remote

# Usual names of the columns, by their kind and option.
USUAL = {
    "mask": ("mask", "annotation", "segmentation", "segmentation_mask", "label", "semantic_mask"),
    "objects": ("objects", "annotations"),
    "depth": ("depth", "depth_map"),
}
KINDS = {"mask": TargetKind.PIXELS, "objects": TargetKind.SEGMENTS, "depth": TargetKind.DEPTH}
# Other options that each goes with.
_BESIDE = {"mask": ids.OPTIONS, "depth": ("scale",)}
_BOXES, _CATEGORIES = ("bbox", "boxes", "bboxes"), ("category", "categories", "label", "labels")
_MOST = 10  # of 10 boxes as (x, y, width, height), one may lie outside


class ColumnSource(Labelled):
    """The rows of a Parquet source whose column has a target that can be used."""

    def __init__(
        self,
        source: ParquetSource,
        chosen: Sequence[int],
        kind: TargetKind,
        annotations: Annotations,
        shapes: Mapping[int, Shape],
    ) -> None:
        """Take the rows, and their annotations and shapes by the rows' numbers in the source."""
        self._source, self._chosen = source, np.array(chosen, np.int64)
        self.name, self.drawn, self.is_remote = source.name, source.drawn, source.is_remote
        self.target_kind, self._annotations, self._shapes = kind, annotations, dict(shapes)
        self.class_names, self.things = annotations.classes, annotations.things
        self.labels = np.full(len(chosen), -1, np.int32)

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> Example:
        """Return an example's encoded image; its label is -1. Raises as `ParquetSource.read`."""
        return {"image": self._source.read(int(self._chosen[index]))["image"], "label": -1}

    def target(self, index: int) -> PixelTarget:
        """Return an example's target, in pixels of the upright image.

        Raises DataError: it cannot be read, or is of another size; RemoteError.
        """
        row, kind = int(self._chosen[index]), TargetKind(self.target_kind)
        try:
            shape = self._shapes.get(row) or shape_of(self.read(index)["image"])
            found = self._annotations.target(row, kind, shape)
            return fitted(found, shape, self.example_id(index))
        except (remote.RemoteError, DataError):
            raise
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{self.example_id(index)}: {error}") from error

    def example_id(self, index: int) -> str:
        return self._source.example_id(int(self._chosen[index]))

    def digest(self) -> str:
        """Digest the source, and what each target is."""
        rows = (self._annotations.digest(row) for row in self._chosen.tolist())
        return digest_of([self._source.digest().encode(), *rows])


class ImageColumn:
    """Masks or depth maps in a column of images; see `Annotations`."""

    things: tuple[bool, ...] = ()

    def __init__(
        self,
        source: ParquetSource,
        column: str,
        kind: TargetKind,
        classes: tuple[str, ...] = (),
        meaning: Ids | None = None,
        scale: float | None = None,
    ) -> None:
        """Take the source and its column; of masks what ids mean, of depth maps their unit."""
        self._source, self._column, self._kind = source, column, kind
        self.classes, self._ids, self._scale = classes, meaning, scale

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """See `Annotations`; what was looked at is checked in `opened`."""
        del rows, shapes, kind
        return Checked({})

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        del kind, shape
        data = bytes_of(self._source.value(self._column, row))
        if self._ids is not None:
            classes = self._ids.classes_of(read_mask(data, self._column))
            height, width = classes.shape
            return PixelTarget(size=(height, width), label_map=classes)
        return depth.target_of(depth.read_depth(data, self._column), self._scale)

    def digest(self, row: int) -> bytes:
        """See `Annotations`: the files' names and sizes tell the rest."""
        return f"{row} {self._column} {self._ids} {self._scale}".encode()


def bytes_of(value: Any) -> bytes:
    """Return an encoded image of a column; raises ValueError: there is none."""
    found = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(found, bytes) or not found:
        raise ValueError("the row has no mask, or its path alone")
    return found


def without_label(name: str, target: str) -> str:
    """Return a name by which no label is read, where it chooses targets or such are wanted."""
    chosen = options(name)[1]
    if "label" in chosen or not (target or chosen.keys() & KINDS.keys()):
        return name
    return f"{name}{'&' if chosen else '?'}label={NO_LABEL}"


def option_of(chosen: Mapping[str, str], target: str, where: str) -> str:
    """Return which of `KINDS` a name chooses, or a `TargetKind` means; "" for neither.

    Raises UserError: two are chosen, or one of another kind; an option that would do nothing.
    """
    given = [option for option in KINDS if option in chosen]
    if len(given) > 1:
        raise UserError(f"{where}: ?{given[0]}= and ?{given[1]}= are two targets; choose one")
    option = next((key for key, kind in KINDS.items() if kind == target), "")
    if given and target and given[0] != option:
        raise annotated.unfit(TargetKind(target), (KINDS[given[0]],), where)
    option = given[0] if given else option
    extra = chosen.keys() & {*ids.OPTIONS, "scale", "images", "masks"}
    if extra := sorted(extra - {*_BESIDE.get(option, ())}):
        if not option:
            raise UserError(f"{where} has no ?{extra[0]}= without ?mask=, ?objects= or ?depth=")
        raise UserError(f"{where}: ?{extra[0]}= does nothing for ?{option}=; leave it out")
    return option


def with_targets(source: Source, name: str, target: str) -> Source:
    """Return a source with the targets that its name chooses, or that are of the wanted kind.

    Without either, the source as it is.

    Raises UserError: it has no such column, targets that no row has, an id of no class.
    """
    chosen = options(name)[1]
    option = option_of(chosen, target, source.name)
    if not option:
        return source
    if not isinstance(source, ParquetSource):
        raise UserError(f"{source.name} is no Parquet file, whose columns have targets")
    column = _column(source, option, chosen.get(option, ""))
    key = ("columns", name, source.name, option)
    return look.kept(key, lambda: _opened(source, option, column, chosen))


def _column(source: ParquetSource, option: str, given: str) -> str:
    there = list(source.schema.names)
    if given:
        if given not in there:
            raise unknown(f"column of {source.name}", given, there)
        return given
    import pyarrow.types as types

    for name in USUAL[option]:
        if name in there and name != source.image_column:
            kind = source.schema.field(name).type
            nested = types.is_struct(kind) or types.is_list(kind) or types.is_binary(kind)
            if nested or types.is_large_binary(kind) or types.is_large_list(kind):
                return name
    what = (
        f"{source.name} has no column such as {USUAL[option][0]} ({', '.join(map(shown, there))})"
    )
    raise UserError(f"{what}; choose one by the end of the name: ?{option}=COLUMN")


def _opened(
    source: ParquetSource, option: str, column: str, chosen: Mapping[str, str]
) -> ColumnSource:
    places = [source.place(row) for row in range(len(source))]
    facts: dict[int, list[Any]] = {}
    notes: list[str] = []
    if source.is_remote:
        notes = [f"nobody looked into the {len(source):,} targets: those in a bucket are believed"]
    else:
        files = sorted({path for path, _ in places})
        measure = functools.partial(
            _file_facts, image=source.image_column, column=column, option=option
        )
        texts = measured(files, f"the column {column} of {source.name.partition('[')[0]}", measure)
        rows = {}
        for path, text in zip(files, texts, strict=True):
            if text.startswith("!"):
                raise DataError(f"{shown(path)}: {text[1:]}")
            rows[path] = json.loads(text)
        facts = {row: rows[path][number] for row, (path, number) in enumerate(places)}
    shapes = {row: Shape(*each[0]) for row, each in facts.items() if each[0]}
    bad: dict[int, str] = {row: "without an image" for row, each in facts.items() if not each[0]}
    annotations: Annotations
    if option == "objects":
        annotations = _objects(source, column, facts, shapes, notes)
        rows_left = [row for row in range(len(source)) if row not in bad]
        checked = annotations.check(rows_left, shapes, TargetKind.SEGMENTS)
        bad |= checked.bad
        notes += checked.notes
    else:
        for row, (shape, told) in facts.items():
            if shape and (why := _unfit(Shape(*shape), told, option)):
                bad[row] = why
        kind = KINDS[option]
        if option == "depth":
            scale = depth.scale_of(chosen)
            maps = {
                row: depth.DepthFacts(*told[1:])
                for row, (_, told) in facts.items()
                if row not in bad
            }
            found = depth.judged(maps, scale, source.name, source.example_id)
            bad |= found.bad
            notes += found.notes
            annotations = ImageColumn(source, column, kind, scale=scale)
        else:
            there = {i for row, (_, told) in facts.items() if row not in bad for i in told[1:]}
            names = _names(source, column) or shards.class_names_beside(source.files)
            meaning, names = ids_of(chosen, names, {int(i) for i in there}, source.name)
            if strange := meaning.unknown({int(i) for i in there}):
                count = sum(bool({*strange} & {*told[1:]}) for _, told in facts.values() if told)
                what = f"{count:,} of {len(facts):,} masks have pixels of class {max(strange)}"
                raise UserError(f"{source.name}: {what}; {meaning.advice()}")
            annotations = ImageColumn(source, column, kind, names, meaning)
    left = [row for row in range(len(source)) if row not in bad]
    counts = left_out((why, source.example_id(row)) for row, why in bad.items())
    why = ", ".join(f"{each.count:,} {reason} ({each.first[0]})" for reason, each in counts.items())
    if not left:
        raise UserError(f"{source.name}: no row has a target that can be used ({why})")
    if bad:
        notes.append(f"{len(bad):,} of {len(source):,} rows of {source.name} are left out: {why}")
    found = ColumnSource(source, left, KINDS[option], annotations, shapes)
    if source.account is not None:
        before = source.account
        found.account = dataclasses.replace(
            before,
            num_classes=len(found.class_names),
            notes=(*before.notes, *annotated.findings(notes)),
            said=tuple(line for line in notes if isinstance(line, Said)),
        )
    return found


def _names(source: ParquetSource, column: str) -> tuple[str, ...]:
    """Return the classes that the Hub's metadata name for what a column holds, () for none."""
    left: list[Any] = [source.features.get(column)]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("_type") == "ClassLabel" and isinstance(node.get("names"), list):
                return class_names(map(str, node["names"]))
            left += node.values()
        elif isinstance(node, list):
            left += node
    return ()


def _unfit(shape: Shape, told: Sequence[Any], option: str) -> str:
    what = "mask" if option == "mask" else "depth map"
    if not told:
        return f"without a {what}"
    if isinstance(told[0], str):
        return f"with a {what} that cannot be read"
    return "" if tuple(told[0]) in (shape.size, shape.stored) else f"with a {what} of another size"


def _file_facts(place: str, *, image: str, column: str, option: str) -> str:
    """Return, as JSON, of each row of a file its image's shape and what its target holds."""
    opened = opened_file(place)
    found = []
    for number in range(opened.metadata.num_row_groups):
        both = opened.read_row_group(number, columns=[image, column])
        images, targets = (both.column(name) for name in (image, column))
        for one, two in zip(images, targets, strict=True):
            found.append([_shape(one.as_py()), _facts(two.as_py(), option)])
    return json.dumps(found)


def _shape(value: Any) -> list[int]:
    try:
        return list(shape_of(bytes_of(value)))
    except ValueError:
        return []


def _facts(value: Any, option: str) -> list[Any]:
    """Return [size, id, ...] of a mask, [size, bits, least, most] of a depth map, or the objects.

    [why] stands for a mask or map that cannot be read, [] for none.
    """
    if option == "objects":
        return _boxes(value)
    try:
        data = bytes_of(value)
    except ValueError:
        return []
    try:
        found = read_mask(data, "") if option == "mask" else depth.read_depth(data, "")
    except (ValueError, OSError, SyntaxError) as error:
        return [str(error)]
    if option == "depth":
        return [list(found.shape), *depth.facts_of(found)]
    return [list(found.shape), *np.flatnonzero(np.bincount(found.ravel())).tolist()]


def _boxes(value: Any) -> list[Any]:
    """Return [boxes, categories] of a row's objects, [] where they are no such."""
    if value is None:
        return [[], []]
    if isinstance(value, list):
        value = {
            key: [each.get(key) for each in value if each] for key in (value[0] if value else ())
        }
    if not isinstance(value, dict):
        return []
    boxes = next((value[key] for key in _BOXES if key in value), [])
    kinds = next((value[key] for key in _CATEGORIES if key in value), [])
    numbers = all(isinstance(box, list) and len(box) == 4 for box in boxes)
    if not numbers or len(boxes) != len(kinds):
        return []
    return [boxes, kinds]


def _objects(
    source: ParquetSource,
    column: str,
    facts: Mapping[int, Sequence[Any]],
    shapes: Mapping[int, Shape],
    notes: list[str],
) -> SegmentRecords:
    """Return the objects of all rows as records."""
    rows = {row: each[1] for row, each in facts.items()}
    for row in range(len(source)) if not facts else ():
        rows[row] = _boxes(source.value(column, row))
    if bad := [row for row, each in rows.items() if not each]:
        what = (
            f"{len(bad):,} of {len(rows):,} rows have no lists of bbox and category of one length"
        )
        raise UserError(f"{source.name}: {what} (first: {source.example_id(bad[0])})")
    corners = _are_corners(rows, shapes)
    if corners:
        notes.append(
            Said("boxes are (left, top, right, bottom): as widths they would leave their images")
        )
    names = _names(source, column)
    words = sorted({str(k) for _, kinds in rows.values() for k in kinds}, key=_number)
    if not names:
        whole = all(isinstance(k, int) for _, kinds in rows.values() for k in kinds)
        last = max((int(k) for _, kinds in rows.values() for k in kinds), default=0) if whole else 0
        names = tuple(map(str, range(last + 1))) if whole else tuple(words)
    of = {name: k for k, name in enumerate(names)}
    records = []
    for row in range(len(source)):
        boxes, kinds = rows[row]
        classes = [k if isinstance(k, int) else of[str(k)] for k in kinds]
        if any(not 0 <= k < len(names) for k in classes):
            what = f"has a category of {max(classes)}, and the classes are 0 to {len(names) - 1}"
            raise UserError(f"{source.example_id(row)} {what}")
        whole = [b if corners else [b[0], b[1], b[0] + b[2], b[1] + b[3]] for b in boxes]
        records.append(Record(whole, classes))
    return SegmentRecords(records, names, [source.example_id(row) for row in range(len(source))])


def _are_corners(rows: Mapping[int, Sequence[Any]], shapes: Mapping[int, Shape]) -> bool:
    """Return whether boxes end to the right of where they begin, and as widths often leave."""
    beyond = total = 0
    for row, shape in shapes.items():
        for left, top, third, fourth in rows[row][0]:
            if third <= left or fourth <= top:
                return False
            total += 1
            beyond += left + third > shape.width + 1 or top + fourth > shape.height + 1
    return _MOST * beyond > total


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)
