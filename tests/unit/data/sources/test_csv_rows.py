# SPDX-License-Identifier: Apache-2.0
"""A table is read in any encoding that it tells, and refused in words that name the fix."""

import bz2
import gzip

import pytest

from vit_jax.data.sources import csv_files
from vit_jax.errors import UserError

TEXT = 'path,label,note\na/1.jpg,caf\u00e9,x\n\n,,\n"a, b.jpg","two\nlines",\n'


def read(data: bytes | str) -> list[csv_files.CsvRow]:
    return csv_files.read(data if isinstance(data, bytes) else data.encode(), "t.csv")


def test_encodings_and_separators_that_are_sure() -> None:
    wanted = read(TEXT)
    assert [row.line for row in wanted] == [2, 6]
    assert wanted[1].cells == {"path": "a, b.jpg", "label": "two\nlines", "note": ""}
    other = TEXT.replace("a, b", "COMMA").replace(",", ";").replace("COMMA", "a, b")
    for text in (TEXT, other, other.replace(";", "\t"), other.replace(";", "|")):
        for form in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
            assert read(text.encode(form)) == wanted, (text, form)
        assert read(gzip.compress(text.encode())) == wanted
        assert read(text.replace("\n", "\r\n"))[0] == wanted[0]
    told = read(f"sep=;\n{other}")
    assert [row.cells for row in told] == [row.cells for row in wanted]
    assert [row.line for row in told] == [3, 7]
    for head in ("Path,LABEL,Note", " path , label,note", '"path","label","note"'):
        assert read(TEXT.replace("path,label,note", head)) == wanted


def test_what_is_not_sure_is_refused_with_the_fix() -> None:
    latin = TEXT.encode("latin-1")
    for data, why in (
        (latin, "t.csv, line 2: can't decode the byte 0xe9, which is not UTF-8; save it as CSV in"),
        (TEXT.encode("utf-16")[:-1], "t.csv is cut off or damaged: it is no utf-16 text"),
        (gzip.compress(TEXT.encode())[:-5], "t.csv is cut off or damaged: gzip cannot read it"),
        (b"PK\x03\x04...", "t.csv is a zip file, as those of Excel are; save it as CSV in UTF-8"),
        (b"PAR1...", "t.csv is a Parquet file; name it as data.name=parquet:FILE"),
        (bz2.compress(b"path"), "t.csv is compressed; decompress it, or compress it by gzip"),
        (b"", "t.csv has the columns nothing; its first line must name path,label"),
        ("file;label\na;b\n", "t.csv has the columns file, label; its first line must name"),
        ("path,label,Label\na,b,c\n", "t.csv has the column label twice; keep one of them"),
        ("path,label\n", "t.csv lists no images"),
        (
            "path,label\na,b.jpg,cat\n",
            "t.csv, line 2 has 3 cells, and the first line 2; put a",
        ),
        (
            'path,label\na,"b\nc,d\n',
            "t.csv, line 3: unexpected end of data; put a cell with",
        ),
        ('path,label\na,"b"c\n', "t.csv, line 2: .* put a cell with quotes"),
        ("path,label\n ,a\n", "t.csv, line 2: give a value for path, label"),
        ("path,label,split\na,b,\n", "t.csv, line 2: give a value for path, label, split"),
    ):
        with pytest.raises(UserError, match=why) as caught:
            read(data)
        assert "codec" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_packed_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "_MAX_BYTES", 1 << 10)
    with pytest.raises(UserError, match=r"t\.csv holds more than"):
        read(gzip.compress(bytes(1 << 20)))
