# SPDX-License-Identifier: Apache-2.0
"""Labels that a person reads alike are spelled alike, by whatever reader and of whatever type."""

import csv
import io
import math
import tempfile
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.photos import tiny
from tests.shards import write_tar
from vit_jax.data import names, open_source
from vit_jax.data.names import alike, classes_of, label_of, one_spelling


def test_spaces_and_accents_have_one_spelling_and_case_stays() -> None:
    for text in (
        "café au lait",
        "cafe\u0301 au lait ",
        "\tcafé\u00a0 au\nlait",
        "\ufeffcafé au lait",
        "\u200bcafé au\u00ad lait\u200e",  # what nobody sees
    ):
        assert one_spelling(text) == "café au lait", text
    assert one_spelling("Cat") != one_spelling("cat")
    assert one_spelling("नि\u200dष") != one_spelling("निष")  # a joiner means something
    assert alike("❤\ufe0f") == alike("❤")
    assert alike("Straße") == alike("STRASSE ")


def test_a_label_of_any_type_is_a_text() -> None:
    for value, text in (
        (" a  cat\n", "a cat"),
        ("cafe\u0301", "café"),
        (b"\xef\xbb\xbfcat ", "cat"),
        (bytearray(b"cat"), "cat"),
        ('"cat"', "cat"),
        ("'cat'", "cat"),
        ('"caf\\u00e9"', "café"),
        ('"a" or "b"', '"a" or "b"'),
        ('"', '"'),
        (3, "3"),
        (3.0, "3"),
        (Decimal("3"), "3"),
        (np.int64(3), "3"),
        (np.float32(3), "3"),
        (np.array(3), "3"),
        (True, "true"),
        (np.False_, "false"),
        ("0.5", "0.5"),
        *((nothing, "") for nothing in (None, "", " ", '""', math.nan, np.nan, Decimal("NaN"))),
        ("[unused", "[unused"),
        ("[a] cat", "[a] cat"),
        *((nothing, "") for nothing in ("nan", "-nan", "NaN", -1, -1.0, "-1", "-1.0", b"")),
    ):
        assert label_of(value) == text, value


def test_what_is_no_label_is_said_for_what_it_is() -> None:
    for value, why in (
        ([1, 2], r"the label is \[1, 2\], several labels: an image has one label here"),
        (("a",), "several labels"),
        (np.array([1]), "several labels"),
        ("[1, 2]", r"the label is \[1, 2\], several labels"),
        ("['a', 'b']", r"the label is \['a', 'b'\], several labels"),
        (b'{"a": 1}\n', "the label is {'a': 1}, a dict"),
        ({"a": 1}, "a dict: an image has one label here"),
        (0.5, "the label is 0.5, no whole number: labels are classes; a number to be predicted"),
        (np.float64(1.25), "no whole number"),
        (math.inf, "no whole number"),
        (Decimal("1.5"), "no whole number"),
        (1j, "no whole number"),
        (-2, "the label is '-2'; there is none below 0 but -1, which is no label"),
        ("-30", "the label is '-30'; there is none below 0"),
        (b"caf\xe9", r"the label b'caf\\xe9' is no text in UTF-8"),
        (np.datetime64("2020-01-01"), "of type date"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            label_of(value)
        assert len(str(caught.value)) < 200


def test_whole_numbers_go_by_value_and_words_by_text() -> None:
    for labels, classes, of in (
        (("10", "9", "1"), ("1", "9", "10"), {}),
        (("010", "9"), ("9", "010"), {}),
        (("0", "00", "1"), ("0", "1"), {"00": "0"}),
        (("3.0", "10.0", "3"), ("3", "10"), {"3.0": "3"}),
        (("+3", "3", "7.", "-0"), ("0", "3", "7"), {"+3": "3", "7.": "7"}),
        (("10", "9", "x", ""), ("10", "9", "x"), {}),
        (("9.5", "10"), ("10", "9.5"), {}),
        ((), (), {}),
    ):
        found, listed, _ = classes_of(dict.fromkeys(labels, 1))
        assert listed == classes
        assert {text: found[text] for text in of} == of


def test_what_looks_alike_is_said_with_both_names_and_counts() -> None:
    for counts, said in (
        ({"Cat": 3, "cat": 1, "dog": 2}, "the labels 'Cat' (3) and 'cat' (1) are 2 classes"),
        ({"a_b": 3, "a b": 1}, "the labels 'a b' (1) and 'a_b' (3) are 2 classes"),
        ({"x01": 3, "x1": 1, "y": 2}, "the labels 'x01' (3) and 'x1' (1) are 2 classes"),
        ({"1e0": 3, "1.0": 1, "x": 2}, "the labels '1.0' (1) and '1e0' (3) are 2 classes"),
        ({"ﬁg": 3, "fig": 1}, "the labels 'fig' (1) and 'ﬁg' (3) are 2 classes"),
        ({"\uff12": 3, "2": 1, "x": 1}, "the labels '2' (1) and '\uff12' (3) are 2 classes"),
        ({"0": 3, "00": 1}, "the labels '0' (3) and '00' (1) are one number, and one class"),
        ({"0": 3, "00": 1, "x": 1}, "the labels '0' (3) and '00' (1) are 2 classes"),
        ({"None": 3, "x": 1}, "the label 'None' (3) is a class; if it stands for no label"),
        ({"N/A": 3, "x": 1}, "the label 'N/A' (3) is a class"),
        ({"0.5": 3, "1": 1}, "the labels are numbers (0.5, 1, ...), of which each is a class"),
    ):
        (note,) = classes_of(counts)[2]
        assert note.startswith(said)
    for quiet in ({"1": 1, "2": 1}, {"10": 1, "1": 1, "x": 1}, {"a1": 1, "a10": 1}, {"": 5}):
        assert classes_of(quiet)[2] == []


def test_columns_that_do_not_mean_the_same() -> None:
    for ones, others, places in (
        ("a b c", "a b c", None),
        ("a b", "A b", None),
        ("0 1 0", "x y x", None),
        ("0 1", "1 2", None),
        ("a b", "a c", (1, 1)),
        ("0 1 0", "x y y", (0, 2)),
        ("0 1", "x x", (0, 1)),
    ):
        assert names.contradiction(ones.split(), others.split()) == places, (ones, others)
    assert names.contradiction(["", "a"], ["x", "a"]) is None


def test_splits_have_one_name() -> None:
    texts = (" train", "Train", "train", "Fold 1", "fold  1", "cafe\u0301", "Only ")
    found = ("train", "train", "train", "fold 1", "fold 1", "café", "Only")
    assert tuple(names.split_names(texts)[text] for text in texts) == found
    there = ["train", "validation", "Test", "fold 1", "café"]
    for split, known in (
        (" Train ", "train"),
        ("training[:50%] + VAL[90%:90%+20]", "train[:50%]+validation[90%:90%+20]"),
        ("dev", "validation"),
        ("testing[5:]", "Test[5:]"),
        ("FOLD  1[:2]", "fold 1[:2]"),
        ("cafe\u0301", "café"),
        ("other", "other"),
        ("", ""),
    ):
        assert names.with_known_names(split, there) == known
    assert names.with_known_names("val", ["validation", "val"]) == "val"
    assert {*names.split_names(["'train'", "train", '"Train"']).values()} == {"train"}
    assert names.split_notes(["val", "Valid", "train", "x"]) == [
        "'val' and 'Valid' are 2 splits, of one meaning"
    ]


def test_files_of_class_names_of_every_form() -> None:
    for text in (
        "tench\ngreat  shark\n",
        "\ufefftench \r\ngreat shark\r\n\r\n",
        "0 tench\n1 great shark",
        "1: great shark\n0: tench",
        "1 tench\n2 great shark",
        '["tench", "great shark"]',
        '{"0": "tench", "1": "great shark"}',
        '{"1": "great shark", "0": "tench"}',
        '{"great shark": 1, "tench": 0}',
        '{"0": ["n01440764", "tench"], "1": ["n01484850", "great shark"]}',
    ):
        assert names.read_class_names(text) == ("tench", "great shark"), text
    for text in ("2 cats\n3 dogs", "[a]\n[b]", "1 one\n1 two"):
        assert names.read_class_names(text) == tuple(text.splitlines())
    assert names.read_class_names("\n") == ()
    for text, why in (
        ("a\n\nb", "the name of class 1 is ''; give a text"),
        ('["a", 3]', "the name of class 1 is 3; give a text"),
        ('{"0": "a", "2": "b"}', "a JSON object must name each class 0 to K - 1; it has 2 keys"),
        ('{"a": "b"}', "must name each class"),
    ):
        with pytest.raises(ValueError, match=why):
            names.read_class_names(text)


LABELS = st.lists(
    st.one_of(
        st.integers(-1, 12),
        st.booleans(),
        st.none(),
        st.sampled_from(["Cat", "cat", " cat", "'cat'", "cafe\u0301", "café", "a, b", "NaN"]),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
    ),
    min_size=1,
    max_size=8,
)


def _parquet(folder: Path, texts: list[str], values: list[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    column = values if len(kinds) == 1 else texts
    pq.write_table(pa.table({"image": [b"x"] * len(texts), "label": column}), folder / "0.parquet")
    return f"parquet:{folder}/0.parquet"


def _tar(folder: Path, texts: list[str], values: list[Any]) -> str:
    files = {f"{i}.jpg": b"x" for i in range(len(texts))}
    write_tar(folder / "0.tar", files | {f"{i}.cls": t.encode() for i, t in enumerate(texts)})
    return f"tar:{folder}/0.tar"


def _csv(folder: Path, texts: list[str], values: list[Any]) -> str:
    for i in range(len(texts)):
        (folder / f"{i}.jpg").write_bytes(tiny(f"{i}"))
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("path", "label"), *((f"{i}.jpg", t) for i, t in enumerate(texts))])
    (folder / "0.csv").write_bytes(out.getvalue().encode())
    return f"csv:{folder}/0.csv"


@settings(max_examples=20, deadline=None)
@given(LABELS)
def test_every_reader_reads_the_same_labels(values: list[Any]) -> None:
    plain = ["" if value is None else value for value in values]
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in plain]
    try:
        wanted = [label_of(text) for text in texts]
    except ValueError:  # a number below -1
        return
    if not any(wanted):
        return
    numeric = None not in [names.whole_number(text) for text in wanted if text]
    orders = set()
    for write in (_csv, _parquet, _tar):
        with tempfile.TemporaryDirectory() as folder:
            source: Any = open_source(write(Path(folder), texts, values), split="whole")
        found = [source.class_names[k] if k >= 0 else "" for k in source.labels]
        # In tars and Parquet files numbers are ids, called by their value.
        as_read = names.whole_number if numeric else str
        assert list(map(as_read, found)) == list(map(as_read, wanted))
        orders.add(tuple(as_read(name) for name in source.class_names if name in found))
        account = source.account
        assert account.found == len(values) == sum(account.used.values())
        assert any("without a label" in note for note in account.notes) == ("" in wanted)
    assert len(orders) == 1


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=12), st.booleans())
def test_a_spelling_is_its_own_spelling(text: str, decomposed: bool) -> None:
    try:
        label = label_of(unicodedata.normalize("NFD", text) if decomposed else text)
    except ValueError:
        return
    assert label_of(label) == label == one_spelling(label)
    assert label_of(f'"{label}"') == label or '"' in label or "\\" in label
