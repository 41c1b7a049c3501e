# SPDX-License-Identifier: Apache-2.0
"""Columns are found by the Hub's metadata, else by their types; several need a choice."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.shards import hub_table
from vit_jax.data import parquet_columns
from vit_jax.errors import UserError

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
    assert parquet_columns.find(file, chosen, "x") == expected


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
        parquet_columns.find(file, chosen, "x")
    assert str(caught.value).startswith(message)


def test_labels_of_each_kind() -> None:
    def labels(values, **features) -> list:
        file = opened({"image": IMAGES[:1] * len(values), "label": values}, features)
        return parquet_columns.labels(file, parquet_columns.find(file, {}, "x")).tolist()

    assert labels([3, None, -1]) == [3, -1, -1]
    assert labels(["owl", None, "ant "]) == [b"owl", b"", b"ant"]
    assert labels([1, 0], label=FINE) == [1, 0]
    other = parquet_columns.Columns("image.bytes", "label", ("bee", "ant"))
    with pytest.raises(ValueError, match="it has classes of other names, unlike the first file"):
        parquet_columns.labels(opened({"image": IMAGES, "label": [0, 1]}, {"label": FINE}), other)
    with pytest.raises(ValueError, match="it has no column label, unlike the first file"):
        parquet_columns.labels(opened({"image": IMAGES}), other)
