# SPDX-License-Identifier: Apache-2.0
"""Images listed in a CSV file, `csv:FILE` with the columns path, label and, if any, split.

Encoding, separator and columns are those that the file's beginning tells for sure. Runs that were
begun by earlier versions read their tables as those did, `csv:FILE?rules=1`.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import posixpath
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.data import old_tables, several
from vit_jax.data.account import Account, left_out
from vit_jax.data.names import (
    LABELS,
    classes_of,
    contradiction,
    label_of,
    one_spelling,
    split_names,
    split_notes,
    with_known_names,
    without_label,
)
from vit_jax.data.sources import captions as captions_lib
from vit_jax.data.sources import look
from vit_jax.data.sources.base import Example, absolute_slices, digest_of
from vit_jax.data.sources.captions import Captions, Texts
from vit_jax.data.sources.folders import FolderSource
from vit_jax.data.sources.look import Seen, copies_told, same_content
from vit_jax.data.sources.partition import (
    WHOLE,
    SplitDraw,
    check_no_seed,
    draw_of,
    options,
    partition,
)
from vit_jax.errors import UserError, shown
from vit_jax.storage import remote
from vit_jax.storage.files import refused

NEEDED = ("path", "label")
_KNOWN = (*NEEDED, "split")
# open_clip's names of the columns of paths and captions come after the usual ones.
_PATHS = ("path", "filepath")
_CAPTIONS = (*captions_lib.USUAL, "title")
_MAX_BYTES = 2 << 30  # of a table that is unpacked
_SEPARATORS = ",;\t|"
_MARKS = {  # of encodings; UTF-32's begins as UTF-16's does
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_AS_TEXT = "save it as CSV in UTF-8"
_OTHERS = {
    b"PK\x03\x04": f"is a zip file, as those of Excel are; {_AS_TEXT}",
    b"\xd0\xcf\x11\xe0": f"is a file of an old Excel; {_AS_TEXT}",
    b"PAR1": "is a Parquet file; name it as data.name=parquet:FILE",
    b"BZh": "is compressed; decompress it, or compress it by gzip",
    b"\xfd7zXZ": "is compressed; decompress it, or compress it by gzip",
    b"\x28\xb5\x2f\xfd": "is compressed; decompress it, or compress it by gzip",
}


class CsvRow(NamedTuple):
    """One row: the number of its last line, and its cells by the names of the columns."""

    line: int
    cells: dict[str, str]


def read(
    data: bytes, where: str, wanted: Captions = Captions.UNREAD, column: str = "", target: str = ""
) -> list[CsvRow]:
    """Return the rows of a table with the columns path and label, whatever their case.

    With captions or numbers it needs no label; with captions "filepath" may stand for "path".

    It may be packed by gzip, in UTF-8, or UTF-16 or UTF-32 that say so at their beginning; cells
    are separated by what separates path and label in the first line: , ; | or tabs.

    Args:
        data: of the file.
        where: the file in messages.
        wanted: what is done with captions.
        column: of captions; "" is one of a usual name.
        target: columns of numbers, as `several.target_columns` takes them.

    Raises UserError: another format or encoding, no such columns, no rows, or a row of other cells.
    """
    text = _text(_unpacked(data, where), where)
    told = re.match(r"sep=(.)\r?\n", text)  # Excel's
    start = text[told.end() :] if told else text
    first = next(filter(str.strip, start.splitlines()), "")
    separator = told[1] if told else _separator(first, wanted, column, target)
    reader = csv.reader(io.StringIO(start, newline=""), delimiter=separator, strict=True)
    try:
        rows = [(reader.line_num + bool(told), cells) for cells in reader if any(cells)]
    except csv.Error as error:
        line = reader.line_num + bool(told)
        why = f"{error}; put a cell with quotes or line breaks in quotes, and double those in it"
        raise UserError(f"{where}, line {line}: {why}") from None
    columns = _columns(rows[0][1], wanted) if rows else []
    caption = _caption(columns, wanted, column)
    is_missing = not caption and wanted is not Captions.UNREAD
    if is_missing and (column or wanted is Captions.NEEDED) and "path" in columns:
        what = f"column {column!r}" if column else f"column of captions ({', '.join(_CAPTIONS)})"
        how = "choose one by the end of the name: ?captions=COLUMN"
        raise captions_lib.lacking(where, what, map(shown, columns), how)
    targets = several.target_columns(columns, target, where)
    needed = _needed(caption or targets)
    if not {*needed} <= {*columns}:
        has = ", ".join(map(shown, columns)) or "nothing"
        raise UserError(
            f"{where} has the columns {has}; its first line must name {','.join(needed)}"
        )
    for name in (*_KNOWN, caption, *targets):
        if columns.count(name) > 1:
            raise UserError(f"{where} has the column {name} twice; keep one of them")
    # Numbers are called as the table has them: a kelvin, [K], is no [k].
    is_named = {*targets} - {*_KNOWN, caption}
    spelled = [one_spelling(cell) for cell in rows[0][1]]
    columns = [s if c in is_named else c for c, s in zip(columns, spelled, strict=True)]
    if not rows[1:]:
        raise UserError(f"{where} lists no images")
    known = [name for name in _KNOWN if name != "label" or not targets]
    cells_of = [(columns.index(name), name == "label") for name in columns if name in known]
    found = []
    for line, cells in rows[1:]:
        if len(cells) > len(columns) and any(cells[len(columns) :]):
            has = f"{len(cells)} cells, and the first line {len(columns)}"
            raise UserError(f"{where}, line {line} has {has}; put a path with commas in quotes")
        for place, may_be_empty in cells_of:
            if place >= len(cells) or not (may_be_empty or cells[place].strip()):
                names = ", ".join(name for name in columns if name in known)
                raise UserError(f"{where}, line {line}: give a value for {names}")
        if caption or targets:  # an empty one may be left out at the end of a line
            cells = [*cells, *[""] * (len(columns) - len(cells))]
        found.append(CsvRow(line, dict(zip(columns, cells, strict=False))))
    return found


def _needed(other: str | Sequence[str]) -> Sequence[str]:
    return NEEDED[:1] if other else NEEDED


def _caption(columns: Iterable[str], wanted: Captions, column: str) -> str:
    """Return the column of captions, "" for none."""
    if wanted is Captions.UNREAD:
        return ""
    return captions_lib.usual(columns, (column.lower(),) if column else _CAPTIONS)


def _columns(cells: Sequence[str], wanted: Captions) -> list[str]:
    found = [one_spelling(cell).lower() for cell in cells]
    path = captions_lib.usual(found, _PATHS) if wanted is not Captions.UNREAD else ""
    return ["path" if name == path else name for name in found]


def _separator(first: str, wanted: Captions, column: str, target: str) -> str:
    """Return what separates the cells of the line with the columns' names."""
    found = {}
    for separator in _SEPARATORS:
        columns = _columns(next(csv.reader([first], delimiter=separator), []), wanted)
        found[separator] = columns
        other = _caption(columns, wanted, column) or target or "target" * ("target" in columns)
        if {*_needed(other)} <= {*columns} and len(columns) > 1:
            return separator
    return max(found, key=lambda separator: len(found[separator]))


def _unpacked(data: bytes, where: str) -> bytes:
    for mark, why in _OTHERS.items():
        if data.startswith(mark):
            raise UserError(f"{where} {why}")
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            found = stream.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{where} is cut off or damaged: gzip cannot read it") from None
    if len(found) > _MAX_BYTES:
        raise UserError(f"{where} holds more than {_MAX_BYTES >> 30} GiB; divide it")
    return found


def _text(data: bytes, where: str) -> str:
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")
    if not encoding and b"\0" in data[:2]:  # the names of columns begin with a letter of ASCII
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding not in ("", "utf-8-sig"):
            raise UserError(f"{where} is cut off or damaged: it is no {encoding} text") from None
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        fix = f"{_AS_TEXT}, as `iconv -f WINDOWS-1252 -t UTF-8` does with a table of Windows"
        why = f"can't decode the byte 0x{byte:02x}, which is not UTF-8; {fix}"
        raise UserError(f"{where}, line {line}: {why}") from None


_HERE = re.compile(r"(^|/)(?:\./)+")  # means nothing, and in a bucket is part of a name


class CsvSource(FolderSource):
    """Examples of one split of a table, whose labels are no part of the paths."""

    _texts: Texts | None = None

    def add_captions(self, captions: Iterable[tuple[str, ...]]) -> None:
        """Give each example its captions."""
        self._texts, self.has_captions = Texts(captions), True

    def read(self, index: int) -> Example:
        """Return an example's encoded image, its class id and, of a table with these, captions.

        Raises what `FolderSource.read` does.
        """
        example = super().read(index)
        return example if self._texts is None else {**example, "captions": self._texts[index]}

    def captions(self, index: int) -> tuple[str, ...]:
        """Return an example's captions."""
        return () if self._texts is None else self._texts[index]

    def rows(self) -> list[tuple[str, ...]]:
        """List the absolute path and the class of every example, and its captions as JSON."""
        rows = super().rows()
        if self._texts is None:
            return rows
        texts = (json.dumps(self._texts[index]) for index in range(len(self)))
        return [(*row, text) for row, text in zip(rows, texts, strict=True)]

    def columns(self) -> tuple[str, ...]:
        """Name the columns of `rows`."""
        return ("path", *self.class_names) if self.numbers else super().columns()

    def _cells(self) -> list[tuple[str, ...]]:
        return super()._cells() if self._targets is None else self._targets.cells(self.class_names)

    def digest(self) -> str:
        """Digest paths, labels or numbers, and captions."""
        if self._targets is not None:
            names = ["\0".join(cells).encode() for cells in self._cells()]
        else:
            names = [self.class_names[k].encode() if k >= 0 else b"" for k in self.labels]
        pairs = zip(self._paths.tolist(), names, strict=True)
        texts = [] if self._texts is None else [self._texts.digest()]
        return digest_of([*(b"%b\0%b" % pair for pair in pairs), *texts])


class _Example(NamedTuple):
    line: int
    path: str  # as `FolderSource` has it
    file: str  # the same for two spellings of one path
    label: str
    split: str  # "" without such a column
    captions: tuple[str, ...] = ()


def open_csv(
    name: str,
    split: str,
    captions: Captions = Captions.UNREAD,
    bands: tuple[str, ...] = (),
) -> CsvSource:
    """Open one split of the images that a CSV file lists, with TFDS-style slices.

    Paths are relative to the file's folder, or all are addresses; that a bucket holds them is
    believed. Labels are as `names.label_of` and `names.classes_of` read them. Without a column
    "split" the splits are those of `partition`, and "whole". A row that is there twice counts once,
    and one of a file that is gone does not count. `captions` are in a column of a usual name, or in
    that of "FILE?captions=COLUMN"; those of several rows of one file are all the image's.

    Raises UserError: what `read` raises; no such split; most files are gone; a label that
    is no class; one file with two labels or in two splits; two columns of labels that disagree.
    """
    path, given = options(name)
    if surplus := given.keys() - {"captions", "split_seed", "rules", "labels", "target"}:
        raise UserError(f"{shown(path)} is a table: it has no ?{min(surplus)}=; rename its columns")
    draw = draw_of(given)
    is_far = remote.is_remote(path)
    file = Path(os.path.expanduser(path))
    place = path if is_far else str(file)
    where = shown(place if is_far or file.is_absolute() else f"./{place}")
    root: Path | str = path.rpartition("/")[0] if is_far else file.parent
    if draw.rules == 1 and captions is not Captions.NEEDED:
        return _as_before(place, root, where, split, draw)
    target, column = given.get("target", ""), given.get("captions", "")
    with refused(where):
        rows = read(remote.read(place), where, captions, column, target)
    caption = _caption(rows[0].cells, captions, column)
    meant = several.meant([row.cells for row in rows], given, where)
    if all(remote.is_remote(row.cells["path"]) for row in rows):
        addresses = [row.cells["path"] for row in rows]
        root = os.path.commonprefix(addresses).rpartition("/")[0]  # noqa: RUF071  (of a text)
        for row in rows:
            row.cells["path"] = row.cells["path"].removeprefix(f"{root}/")
    if meant.is_one:
        _check_columns(rows, where)
    examples = list(_examples(rows, root, where, caption, meant, folders=bool(bands)))
    gone = [example for example in examples if not example.path]
    if 2 * len(gone) >= len(examples):
        more = f", nor are {len(gone) - 1:,} other files" if len(gone) > 1 else ""
        what = f"there is no file {shown(gone[0].file)} beside it{more}"
        raise UserError(f"{where}, line {gone[0].line}: {what}")
    texts = Counter(example.label for example in examples)
    class_of, classes, notes = (
        classes_of(texts) if meant.is_one else ({x: x for x in texts}, (), [])
    )
    if not (any(texts) or caption) and (line := rows[0].line):
        names = ", ".join(meant.columns)
        raise UserError(f"{where}, line {line}: give a value for path, {names}")
    used, doubled = _once([each for each in examples if each.path], class_of, where)
    empty = [("without a number", each.path) for each in used if meant.numbers and not each.label]
    used = [each for each in used if each.label or not meant.numbers]
    key = place if is_far else os.path.abspath(place)
    used, unread, seen, told = _look(used, root, key, bands)
    if not used:
        raise UserError(f"{where}: none of its {len(unread):,} images can be read ({unread[0][0]})")
    unread += empty
    of_row = None if meant.is_one else meant.read([each.label for each in used])
    classes, notes = (classes, notes) if of_row is None else (of_row.classes, of_row.notes)
    ids = {label: i for i, label in enumerate(classes)} | {"": -1}
    paths = [example.path for example in used]
    if of_row is None:
        labels = [ids[class_of.get(each.label, "")] for each in used]
    else:
        labels = of_row.labels.first().tolist()
    has_splits = "split" in rows[0].cells
    members: dict[str, list[int]] = {WHOLE: list(range(len(used)))}
    own: dict[str, list[int]] = {}
    if has_splits:
        check_no_seed(draw, where)
        for index, example in enumerate(used):
            own.setdefault(example.split, []).append(index)
    else:
        own = dict(partition(paths, labels, draw, [each.key for each in seen]))
    members |= own
    if captions is Captions.NEEDED:
        has = np.array([bool(each.captions) for each in used])
        if not has.any():
            raise UserError(f"{where}: all captions of the column {caption} are empty")
        kept, without = captions_lib.leave_out(members, has, paths.__getitem__)
        members = {key: found.tolist() for key, found in kept.items()}
        unread, own = [*unread, *without], {key: members[key] for key in own}
    split = with_known_names(split, list(members))
    slices = absolute_slices(split, {key: len(m) for key, m in members.items()}, where)
    chosen = [index for key, start, stop in slices for index in members[key][start:stop]]
    source = CsvSource(
        root,
        f"{where}[{split}]" + draw.told(),
        classes,
        [paths[index] for index in chosen],
        [labels[index] for index in chosen],
        drawn=not has_splits,
    )
    source.bands = bands
    if of_row is not None:
        source.take_targets(of_row.labels.take(chosen))
    if caption:
        source.add_captions(used[index].captions for index in chosen)
    if seen:
        groups = same_content(look.places_of(root, paths), seen, key)
        told += copies_told(
            groups,
            [shown(path) for path in paths],
            [each.split for each in used],
            [class_of.get(each.label, "") for each in used],
        )
    is_some = meant.is_one and (classes or not caption)
    unlabelled = without_label(labels.count(-1), len(labels)) if is_some else []
    source.left_out = [
        *(("of files that are not there", each.file) for each in gone),
        *(("doubled rows", each.path) for each in doubled),
        *unread,
    ]
    source.account = Account(
        unit="images" if caption else "rows",  # several rows may be captions of one
        num_classes=len(classes),
        used={key: len(found) for key, found in own.items()},
        left_out=left_out((look.in_a_word(why), path) for why, path in source.left_out),
        notes=(*notes, *split_notes(own), *told, *unlabelled),
        what="" if of_row is None else of_row.what,
    )
    return source


def _look(
    examples: list[_Example], root: Path | str, name: str, bands: tuple[str, ...]
) -> tuple[list[_Example], list[tuple[str, str]], list[Seen], list[str]]:
    """Return the rows whose images can be read, the others' (reason, path), what was seen, notes.

    Nothing is seen of too many in a bucket.
    """
    if isinstance(root, str) and len(examples) > look.MOST_FAR:
        return examples, [], [], [look.believed(len(examples))]
    places = look.places_of(root, [each.path for each in examples])
    if bands:
        from vit_jax.data.sources import arrays  # late: most tables list pictures

        found = arrays.examine(places, name, bands)
    else:
        found = look.examine(places, name)
    pairs = list(zip(examples, found, strict=True))
    unread = [(seen.why, each.path) for each, seen in pairs if seen.why]
    good = [(each, seen) for each, seen in pairs if not seen.why]
    return [each for each, _ in good], unread, [seen for _, seen in good], []


def _as_before(place: str, root: Path | str, where: str, split: str, draw: SplitDraw) -> CsvSource:
    """Open a split as `list_rows` lists it."""
    found = old_tables.list_rows(place, root, where)
    members: dict[str, list[int]] = {WHOLE: list(range(len(found.paths)))}
    if found.splits:
        check_no_seed(draw, where)
        for index, name in enumerate(found.splits):
            members.setdefault(name, []).append(index)
    else:
        members |= partition(found.paths, found.labels, draw)
    split = with_known_names(split, list(members))
    slices = absolute_slices(split, {key: len(m) for key, m in members.items()}, where)
    chosen = [index for key, start, stop in slices for index in members[key][start:stop]]
    return CsvSource(
        found.root,
        f"{where}[{split}]" + draw.told(),
        found.classes,
        [found.paths[index] for index in chosen],
        [found.labels[index] for index in chosen],
        drawn=not found.splits,
    )


def _examples(
    rows: Sequence[CsvRow],
    root: Path | str,
    where: str,
    caption: str,
    meant: several.Cells,
    *,
    folders: bool = False,
) -> Iterator[_Example]:
    """Yield what each row says; without a path where there is no such file.

    `caption` is the column of captions, "" for none; `meant` reads labels, or numbers; with
    `folders` an image may be one.
    """
    splits = split_names(row.cells["split"] for row in rows if "split" in row.cells)
    labels: dict[tuple[str, ...], str] = {}  # of a million rows few differ
    above = os.path.abspath(root)
    for line, cells in rows:
        given = tuple(cells.get(name, "") for name in meant.columns)
        if given not in labels:
            try:
                labels[given] = meant.text(given)
            except ValueError as error:
                raise UserError(f"{where}, line {line}: {error}") from None
        if isinstance(root, Path):
            path = _there(root, cells["path"], folders)
            file = os.path.normpath(os.path.join(above, path)) if path else cells["path"]
        else:
            path = _HERE.sub(r"\1", cells["path"].strip().replace("\\", "/"))
            file = posixpath.normpath(unicodedata.normalize("NFC", path))
        texts = _captions(cells[caption]) if caption else ()
        name = splits.get(cells.get("split", ""), "")
        yield _Example(line, path, file, labels[given], name, texts)


def _captions(cell: str) -> tuple[str, ...]:
    """Return the captions in a cell: its text, or the texts of a list in JSON."""
    if cell.lstrip()[:1] == "[":
        with contextlib.suppress(ValueError, RecursionError):
            return captions_lib.listed(json.loads(cell)).texts
    return captions_lib.listed(cell).texts


def _there(root: Path, given: str, folders: bool) -> str:
    """Return the path by which a file is found, "" for none.

    It may have been written with Windows' separators, or with spaces, or accents otherwise than the
    file system has them.
    """
    is_there = Path.exists if folders else Path.is_file
    if is_there(root / given):
        return given
    plain = given.strip()
    for text in (plain, plain.replace("\\", "/")):
        for form in ("NFC", "NFD"):
            path = unicodedata.normalize(form, text)
            if path != given and is_there(root / path):
                return path
    return ""


def _once(
    examples: Sequence[_Example], class_of: dict[str, str], where: str
) -> tuple[list[_Example], list[_Example]]:
    """Return each file's first row, with the captions of all, and those that say nothing new.

    Raises UserError: two that differ in label or split.
    """
    first: dict[str, _Example] = {}
    doubled = []
    for each in examples:
        before = first.setdefault(each.file, each)
        if before is each:
            continue
        labels = [class_of.get(one.label, "") for one in (before, each)]
        for kind, (one, two) in (("label", labels), ("split", (before.split, each.split))):
            if one != two:
                both = f"the {kind}s {one or 'none'!r} and {two or 'none'!r}"
                lines = f"lines {before.line} and {each.line}"
                what = f"{lines}: {shown(each.path)} has {both}; keep one of the rows"
                raise UserError(f"{where}, {what}")
        more = tuple(text for text in each.captions if text not in before.captions)
        if more:
            first[each.file] = before._replace(captions=(*before.captions, *more))
        else:
            doubled.append(each)
    return list(first.values()), doubled


def _check_columns(rows: Sequence[CsvRow], where: str) -> None:
    """Raise UserError for another column of labels that says something else."""
    if "label" not in rows[0].cells:
        return
    ones = [row.cells["label"] for row in rows]
    for name in LABELS[1:]:
        if name not in rows[0].cells:
            continue
        others = [row.cells.get(name, "") for row in rows]
        try:
            places = contradiction([*map(label_of, ones)], [*map(label_of, others)])
        except ValueError:  # it is no label
            continue
        if places:
            said = [f"line {rows[k].line} has {ones[k]!r} and {others[k]!r}" for k in {*places}]
            what = f"the columns label and {name} disagree ({', '.join(sorted(said))})"
            raise UserError(f"{where}: {what}; keep one of them, or call the other otherwise")
