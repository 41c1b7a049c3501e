# SPDX-License-Identifier: Apache-2.0
"""Rows of a CSV file, whose encoding, separator and columns its beginning tells for sure."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from vit_jax.data.names import one_spelling
from vit_jax.errors import UserError, shown

NEEDED = ("path", "label")
_KNOWN = (*NEEDED, "split")
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


class Row(NamedTuple):
    """One row: the number of its last line, and its cells by the names of the columns."""

    line: int
    cells: dict[str, str]


def read(data: bytes, where: str) -> list[Row]:
    """Return the rows of a table with the columns path and label, whatever their case.

    It may be packed by gzip, in UTF-8, or UTF-16 or UTF-32 that say so at their beginning; cells
    are separated by what separates path and label in the first line: , ; | or tabs.

    Args:
        data: of the file.
        where: the file in messages.

    Raises UserError: another format or encoding, no such columns, no rows, or a row of other cells.
    """
    text = _text(_unpacked(data, where), where)
    told = re.match(r"sep=(.)\r?\n", text)  # Excel's
    start = text[told.end() :] if told else text
    first = next(filter(str.strip, start.splitlines()), "")
    separator = told[1] if told else _separator(first)
    reader = csv.reader(io.StringIO(start, newline=""), delimiter=separator, strict=True)
    try:
        rows = [(reader.line_num + bool(told), cells) for cells in reader if any(cells)]
    except csv.Error as error:
        line = reader.line_num + bool(told)
        why = f"{error}; put a cell with quotes or line breaks in quotes, and double those in it"
        raise UserError(f"{where}, line {line}: {why}") from None
    columns = _columns(rows[0][1]) if rows else []
    if not {*NEEDED} <= {*columns}:
        has = ", ".join(map(shown, columns)) or "nothing"
        raise UserError(f"{where} has the columns {has}; its first line must name path,label")
    for name in _KNOWN:
        if columns.count(name) > 1:
            raise UserError(f"{where} has the column {name} twice; keep one of them")
    if not rows[1:]:
        raise UserError(f"{where} lists no images")
    needed = [(columns.index(name), name == "label") for name in columns if name in _KNOWN]
    found = []
    for line, cells in rows[1:]:
        if len(cells) > len(columns) and any(cells[len(columns) :]):
            has = f"{len(cells)} cells, and the first line {len(columns)}"
            raise UserError(f"{where}, line {line} has {has}; put a path with commas in quotes")
        for column, may_be_empty in needed:
            if column >= len(cells) or not (may_be_empty or cells[column].strip()):
                names = ", ".join(name for name in columns if name in _KNOWN)
                raise UserError(f"{where}, line {line}: give a value for {names}")
        found.append(Row(line, dict(zip(columns, cells, strict=False))))
    return found


def _columns(cells: Sequence[str]) -> list[str]:
    return [one_spelling(cell).lower() for cell in cells]


def _separator(first: str) -> str:
    """Return what separates the cells of the line with the columns' names."""
    found = {}
    for separator in _SEPARATORS:
        found[separator] = _columns(next(csv.reader([first], delimiter=separator), []))
        if {*NEEDED} <= {*found[separator]}:
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
