# SPDX-License-Identifier: Apache-2.0
"""Images listed in a CSV file, `csv:FILE` with the columns path, label and, if any, split."""

import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.data.account import Account, left_out
from vit_jax.data.names import (
    LABELS,
    classes_of,
    contradiction,
    label_of,
    split_names,
    split_notes,
    with_known_names,
    without_label,
)
from vit_jax.data.sources import csv_before, csv_rows, look
from vit_jax.data.sources.base import absolute_slices, digest_of
from vit_jax.data.sources.copies import copies_told, same_content
from vit_jax.data.sources.csv_rows import Row
from vit_jax.data.sources.folders import FolderSource
from vit_jax.data.sources.look_cache import Seen
from vit_jax.data.sources.partition import WHOLE, Draw, check_no_seed, partition, split_draw
from vit_jax.errors import UserError, shown
from vit_jax.storage import remote
from vit_jax.storage.files import refused

_HERE = re.compile(r"(^|/)(?:\./)+")  # means nothing, and in a bucket is part of a name


class CsvSource(FolderSource):
    """Examples of one split of a table, whose labels are no part of the paths."""

    def digest(self) -> str:
        """Digest paths and labels."""
        names = [self.class_names[k].encode() if k >= 0 else b"" for k in self.labels]
        pairs = zip(self._paths.tolist(), names, strict=True)
        return digest_of(b"%b\0%b" % pair for pair in pairs)


class _Example(NamedTuple):
    line: int
    path: str  # as `FolderSource` has it
    file: str  # the same for two spellings of one path
    label: str
    split: str  # "" without such a column


def open_csv(name: str, split: str) -> CsvSource:
    """Open one split of the images that a CSV file lists, with TFDS-style slices.

    Paths are relative to the file's folder, or all are addresses; that a bucket holds them is
    believed. Labels are as `names.label_of` and `names.classes_of` read them. Without a column
    "split" the splits are those of `partition`, and "whole". A row that is there twice counts once,
    and one of a file that is gone does not count.

    Raises UserError: what `csv_rows.read` raises; no such split; most files are gone; a label that
    is no class; one file with two labels or in two splits; two columns of labels that disagree.
    """
    path, draw = split_draw(name)
    is_far = remote.is_remote(path)
    file = Path(os.path.expanduser(path))
    place = path if is_far else str(file)
    where = shown(place if is_far or file.is_absolute() else f"./{place}")
    root: Path | str = path.rpartition("/")[0] if is_far else file.parent
    if draw.rules == 1:
        return _as_before(place, root, where, split, draw)
    with refused(where):
        rows = csv_rows.read(remote.read(place), where)
    if all(remote.is_remote(row.cells["path"]) for row in rows):
        addresses = [row.cells["path"] for row in rows]
        root = os.path.commonprefix(addresses).rpartition("/")[0]  # noqa: RUF071  (of a text)
        for row in rows:
            row.cells["path"] = row.cells["path"].removeprefix(f"{root}/")
    _check_columns(rows, where)
    examples = list(_examples(rows, root, where))
    gone = [example for example in examples if not example.path]
    if 2 * len(gone) >= len(examples):
        more = f", nor are {len(gone) - 1:,} other files" if len(gone) > 1 else ""
        what = f"there is no file {shown(gone[0].file)} beside it{more}"
        raise UserError(f"{where}, line {gone[0].line}: {what}")
    class_of, classes, notes = classes_of(Counter(example.label for example in examples))
    if not classes and (empty := [row for row in rows if not row.cells["label"].strip()]):
        raise UserError(f"{where}, line {empty[0].line}: give a value for path, label")
    used, doubled = _once([each for each in examples if each.path], class_of, where)
    used, unread, seen, told = _look(used, root, key := place if is_far else os.path.abspath(place))
    if not used:
        raise UserError(f"{where}: none of its {len(unread):,} images can be read ({unread[0][0]})")
    ids = {label: i for i, label in enumerate(classes)} | {"": -1}
    paths = [example.path for example in used]
    labels = [ids[class_of.get(example.label, "")] for example in used]
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
    if seen:
        groups = same_content(look.places_of(root, paths), seen, key)
        told += copies_told(
            groups,
            [shown(path) for path in paths],
            [each.split for each in used],
            [class_of.get(each.label, "") for each in used],
        )
    source.left_out = [
        *(("of files that are not there", each.file) for each in gone),
        *(("doubled rows", each.path) for each in doubled),
        *unread,
    ]
    source.account = Account(
        unit="rows",
        num_classes=len(classes),
        used={key: len(found) for key, found in own.items()},
        left_out=left_out((look.in_a_word(why), path) for why, path in source.left_out),
        notes=(*notes, *split_notes(own), *told, *without_label(labels.count(-1), len(labels))),
    )
    return source


def _look(
    examples: list[_Example], root: Path | str, name: str
) -> tuple[list[_Example], list[tuple[str, str]], list[Seen], list[str]]:
    """Return the rows whose images can be read, the others' (reason, path), what was seen, notes.

    Nothing is seen of too many in a bucket.
    """
    if isinstance(root, str) and len(examples) > look.MOST_FAR:
        return examples, [], [], [look.believed(len(examples))]
    found = look.examine(look.places_of(root, [each.path for each in examples]), name)
    pairs = list(zip(examples, found, strict=True))
    unread = [(seen.why, each.path) for each, seen in pairs if seen.why]
    good = [(each, seen) for each, seen in pairs if not seen.why]
    return [each for each, _ in good], unread, [seen for _, seen in good], []


def _as_before(place: str, root: Path | str, where: str, split: str, draw: Draw) -> CsvSource:
    """Open a split as `csv_before` lists it."""
    found = csv_before.list_rows(place, root, where)
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


def _examples(rows: Sequence[Row], root: Path | str, where: str) -> Iterator[_Example]:
    """Yield what each row says; without a path where there is no such file."""
    splits = split_names(row.cells["split"] for row in rows if "split" in row.cells)
    labels: dict[str, str] = {}  # of a million rows few differ
    above = os.path.abspath(root)
    for line, cells in rows:
        given = cells["label"]
        if given not in labels:
            try:
                labels[given] = label_of(given)
            except ValueError as error:
                raise UserError(f"{where}, line {line}: {error}") from None
        if isinstance(root, Path):
            path = _there(root, cells["path"])
            file = os.path.normpath(os.path.join(above, path)) if path else cells["path"]
        else:
            path = _HERE.sub(r"\1", cells["path"].strip().replace("\\", "/"))
            file = posixpath.normpath(unicodedata.normalize("NFC", path))
        yield _Example(line, path, file, labels[given], splits.get(cells.get("split", ""), ""))


def _there(root: Path, given: str) -> str:
    """Return the path by which a file is found, "" for none.

    It may have been written with Windows' separators, or with spaces, or accents otherwise than the
    file system has them.
    """
    if (root / given).is_file():
        return given
    plain = given.strip()
    for text in (plain, plain.replace("\\", "/")):
        for form in ("NFC", "NFD"):
            path = unicodedata.normalize(form, text)
            if path != given and (root / path).is_file():
                return path
    return ""


def _once(
    examples: Sequence[_Example], class_of: dict[str, str], where: str
) -> tuple[list[_Example], list[_Example]]:
    """Return each file's first row, and the others; raises UserError: two that differ."""
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
        doubled.append(each)
    return list(first.values()), doubled


def _check_columns(rows: Sequence[Row], where: str) -> None:
    """Raise UserError for another column of labels that says something else."""
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
