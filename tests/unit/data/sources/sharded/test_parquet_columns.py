# SPDX-License-Identifier: Apache-2.0
"""Columns are found by the Hub's metadata, else by their types; several need a choice."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.refusals import refused_by
from tests.shards import hub_table
from vit_jax.data.sources.sharded import parquet_files
from vit_jax.errors import DataError, UserError

IMAGES = [{"bytes": b"x", "path": "x.jpg"}, {"bytes": b"y", "path": None}]
FINE = {"names": ["ant", "bee"], "_type": "ClassLabel"}


def opened(columns: dict, features: dict | None = None) -> pq.ParquetFile:
    out = io.BytesIO()
    pq.write_table(hub_table(columns, features), out)
    return pq.ParquetFile(pa.BufferReader(out.getvalue()))


CIFAR = opened(
    {"img": IMAGES, "fine_label": [0, 1], "coarse_label": [1, 0], "id": [5, 6], "mask": IMAGES},
    {"img": {"_type": "Image"}, "fine_label": FINE, "coarse_label": {**FINE, "names": ["x", "y"]}},
)


@pytest.mark.parametrize(
    "file, chosen, expected",
    [
        (CIFAR, {"label": "fine_label"}, ("img.bytes", "fine_label", ("ant", "bee"))),
        (CIFAR, {"label": "id", "image": "mask"}, ("mask.bytes", "id", ())),
        (opened({"jpg": [b"x"], "cls": [1], "id": [2]}), {}, ("jpg", "cls", ())),
        (
            opened({"image": IMAGES, "said": [["a"], []]}, {"said": [{"_type": "Value"}]}),
            {},
            ("image.bytes", "", ()),
        ),
        (opened({"image": IMAGES, "depth": IMAGES, "width": [1, 2]}), {}, ("image.bytes", "", ())),
        (
            opened({"pixel_values": IMAGES, "label": pa.array(["a", "b"]).dictionary_encode()}),
            {},
            ("pixel_values.bytes", "label", ()),
        ),
    ],
)
def test_columns(file, chosen, expected) -> None:
    assert parquet_files.find(file, chosen, "x")[:3] == expected


@pytest.mark.parametrize(
    "file, chosen, message",
    [
        (
            CIFAR,
            {},
            "x has several columns of labels (fine_label, coarse_label); choose one by the end "
            "of the name: ?label=fine_label",
        ),
        (CIFAR, {"label": "fin_label"}, "unknown column of labels in x 'fin_label'; did you mean"),
        (opened({"a": IMAGES, "b": IMAGES}), {}, "x has several columns of images (a, b); choose"),
        (opened({"id": [1], "word": ["w"]}), {}, "x has no column of images (struct with bytes"),
    ],
)
def test_what_is_wrong_is_one_line(file, chosen, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parquet_files.find(file, chosen, "x")
    assert str(caught.value).startswith(message)


def test_labels_of_each_kind() -> None:
    def labels(values, **features) -> list:
        file = opened({"image": IMAGES[:1] * len(values), "label": values}, features)
        return parquet_files.labels(file, parquet_files.find(file, {}, "x")).tolist()

    assert labels([3, None, -1]) == [3, -1, -1]
    assert labels(["owl", None, "ant "]) == [b"owl", b"", b"ant"]
    assert labels([1, 0], label=FINE) == [1, 0]
    other = parquet_files.Columns("image.bytes", "label", ("bee", "ant"))
    with pytest.raises(ValueError, match="it has classes of other names, unlike the first file"):
        parquet_files.labels(opened({"image": IMAGES, "label": [0, 1]}, {"label": FINE}), other)
    with pytest.raises(ValueError, match="it has no column label, unlike the first file"):
        parquet_files.labels(opened({"image": IMAGES}), other)


def test_labels_are_of_any_type_or_refused_as_what_they_are() -> None:
    images = [{"bytes": b"x", "path": None}] * 2

    def found(values, chosen=None, **more) -> list:
        file = opened({"image": images, "label": values, **more})
        columns = parquet_files.find(file, chosen or {}, "x")
        return parquet_files.labels(file, columns, "x.parquet").tolist()

    for values, labels in (
        ([True, False], [b"true", b"false"]),
        ([1.0, None], [b"1", b""]),
        ([b"a ", b"b"], [b"a", b"b"]),
        (["'a'", "nan"], [b"a", b""]),
        (pa.array([None, None], pa.null()), [-1, -1]),
        (pa.array(["a", "b"], pa.string_view()), [b"a", b"b"]),
        (pa.array([3, 4], pa.decimal128(5, 0)), [b"3", b"4"]),
    ):
        assert found(values) == labels
    for values, why in (
        ([0.5, 1.0], "x.parquet row 0: the label is 0.5, no whole number"),
        ([float("inf"), 1.0], "x.parquet row 0: the label is inf, no whole number"),
        ([[[1]], [[2]]], "the column label of x holds list<.*>, and labels are numbers or"),
        ([{"a": 1}, {"a": 2}], "the column label of x holds struct<"),
        (pa.array([1, 2], pa.timestamp("s")), "the column label of x holds timestamp"),
    ):
        with pytest.raises(UserError, match=why):
            found(values)
        assert found(values, {"label": "none"}) == [-1, -1]
        assert found(values, {"label": "word"}, word=["a", "b"]) == [b"a", b"b"]
    with pytest.raises(DataError, match="row 1: the label is '-7'; there is none below 0"):
        found(["-1", "-7"])


def test_columns_of_labels_that_disagree_need_a_choice() -> None:
    images = [{"bytes": b"x", "path": None}] * 2
    file = opened({"image": images, "label": [0, 1], "class": ["a", "b"], "target": [0.1, 0.2]})
    assert parquet_files.find(file, {}, "x").label == "label"
    file = opened({"image": images, "label": [0, 0], "class": ["a", "b"]})
    with refused_by("data.sources.sharded.parquet_files._check_usual") as caught:
        parquet_files.find(file, {}, "x")
    assert "row 0 has 0" in str(caught.value)
    assert parquet_files.find(file, {"label": "class"}, "x").label == "class"
