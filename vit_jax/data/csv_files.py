# SPDX-License-Identifier: Apache-2.0
"""Images listed in a CSV file, `csv:FILE` with the columns path, label and, if any, split."""

import csv
import io
import os
from pathlib import Path

from vit_jax import remote
from vit_jax.data.folders import FolderSource
from vit_jax.data.names import with_known_names
from vit_jax.data.partition import WHOLE, check_no_seed, partition, split_draw
from vit_jax.data.sources import absolute_slices, digest_of
from vit_jax.errors import UserError, shown

_COLUMNS = ("path", "label")


class CsvSource(FolderSource):
    """Examples of one split of a table, whose labels are no part of the paths."""

    def digest(self) -> str:
        """Digest paths and labels."""
        names = [self.class_names[label].encode() for label in self.labels]
        pairs = zip(self._paths.tolist(), names, strict=True)
        return digest_of(b"%b\0%b" % pair for pair in pairs)


def open_csv(name: str, split: str) -> CsvSource:
    """Open one split of the images that a CSV file lists, with TFDS-style slices.

    Paths are relative to the file's folder, or all are addresses; that a bucket holds them is
    believed. Classes are the labels, sorted, whole numbers by value. Without a column "split" the
    splits are those of `partition`, and "whole".

    Raises UserError: no such file, column, image or split; a line without a path or a label.
    """
    path, draw = split_draw(name)
    is_far = remote.is_remote(path)
    file = Path(os.path.expanduser(path))
    place = path if is_far else str(file)
    where = shown(place if is_far or file.is_absolute() else f"./{place}")
    rows = _rows(place, where)
    root: Path | str = path.rpartition("/")[0] if is_far else file.parent
    if all(remote.is_remote(row["path"]) for _, row in rows):
        addresses = [row["path"] for _, row in rows]
        root = os.path.commonprefix(addresses).rpartition("/")[0]  # noqa: RUF071  (of a text)
        for _, row in rows:
            row["path"] = row["path"].removeprefix(f"{root}/")
    if isinstance(root, Path):
        lacking = next((n for n, row in rows if not (root / row["path"]).is_file()), None)
        if lacking is not None:
            gone = dict(rows)[lacking]["path"]
            raise UserError(f"{where}, line {lacking}: there is no file {shown(gone)} beside it")
    names = {row["label"] for _, row in rows}
    numeric = all(label.isdecimal() for label in names)
    classes = tuple(sorted(names, key=int if numeric else str))
    paths = [row["path"] for _, row in rows]
    ids = {label: i for i, label in enumerate(classes)}
    labels = [ids[row["label"]] for _, row in rows]
    members: dict[str, list[int]] = {WHOLE: list(range(len(rows)))}
    if "split" in rows[0][1]:
        check_no_seed(draw.seed, where)
        for index, (_, row) in enumerate(rows):
            members.setdefault(row["split"], []).append(index)
    else:
        members |= partition(paths, labels, draw)
    split = with_known_names(split, list(members))
    slices = absolute_slices(split, {key: len(m) for key, m in members.items()}, where)
    chosen = [index for key, start, stop in slices for index in members[key][start:stop]]
    return CsvSource(
        root,
        f"{where}[{split}]" + (draw.told()),
        classes,
        [paths[index] for index in chosen],
        [labels[index] for index in chosen],
        drawn="split" not in rows[0][1],
    )


def _rows(path: str, where: str) -> list[tuple[int, dict[str, str]]]:
    """Return the rows with the numbers of their lines."""
    try:
        reader = csv.DictReader(io.StringIO(remote.read(path).decode("utf-8-sig"), newline=""))
        columns = list(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    if not set(_COLUMNS) <= set(columns):
        has = ", ".join(map(str, columns)) or "nothing"
        raise UserError(f"{where} has the columns {has}; its first line must name path,label")
    if not rows:
        raise UserError(f"{where} lists no images")
    for number, row in rows:
        if not all(row[column] for column in columns if column in (*_COLUMNS, "split")):
            raise UserError(f"{where}, line {number}: give a value for {', '.join(columns)}")
    return rows
