# SPDX-License-Identifier: Apache-2.0
"""Tables as earlier versions read them, for runs that were begun by these: `csv:FILE?rules=1`."""

import csv
import io
import os
from pathlib import Path
from typing import NamedTuple

from vit_jax.errors import UserError, shown
from vit_jax.storage import remote

_COLUMNS = ("path", "label")


class Listed(NamedTuple):
    """What a table holds, row by row.

    Attributes:
        root: to which the paths are relative.
        classes: their names, by class id.
        paths: of the images.
        labels: their class ids.
        splits: their splits; [] where it has none.
    """

    root: Path | str
    classes: tuple[str, ...]
    paths: list[str]
    labels: list[int]
    splits: list[str]


def list_rows(place: str, root: Path | str, where: str) -> Listed:
    """Read a table: every row counts, and a label is its text as it stands there.

    Raises UserError: no such file, column or image; a line without a path or a label.
    """
    rows = _rows(place, where)
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
    ids = {label: i for i, label in enumerate(classes)}
    return Listed(
        root,
        classes,
        [row["path"] for _, row in rows],
        [ids[row["label"]] for _, row in rows],
        [row["split"] for _, row in rows] if "split" in rows[0][1] else [],
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
