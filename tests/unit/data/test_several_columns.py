# SPDX-License-Identifier: Apache-2.0
"""Lists of labels and columns of numbers in Parquet files."""

import json
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vit_jax import data
from vit_jax.data.several_columns import is_number
from vit_jax.errors import DataError, UserError

IMAGE = cv2.imencode(".png", np.zeros((4, 4), np.uint8))[1].tobytes()


def opened(folder: Path, columns: dict, options: str = "", features: dict | None = None):
    count = len(next(iter(columns.values())))
    made = pa.table({"image": [IMAGE] * count, **columns})
    if features:
        info = json.dumps({"info": {"features": features}})
        made = made.replace_schema_metadata({"huggingface": info})
    pq.write_table(made, folder / "train.parquet", row_group_size=2)
    return data.open_source(f"parquet:{folder}/train.parquet{options}", split="train")


def fields(source: data.Source, name: str) -> list:
    return [source.read(k)[name].tolist() for k in range(len(source))]


@pytest.mark.parametrize("kind", ["Sequence", "List", ""])
def test_lists_of_ids_have_the_names_of_the_hubs_metadata(tmp_path: Path, kind: str) -> None:
    names = {"names": ["sun", "sea", "sky"], "_type": "ClassLabel"}
    told = {"_type": kind, "feature": names} if kind else [names]
    source = opened(tmp_path, {"tags": [[2, 0], [], [1], None]}, "", {"tags": told})
    assert source.class_names == ("sun", "sea", "sky")
    assert fields(source, "label") == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert source.spec["label"].dtype == np.uint8


def test_lists_of_words_and_of_plain_ids(tmp_path: Path) -> None:
    source = opened(tmp_path, {"labels": [["b", "a"], ["?b"], ["c"]]})
    assert fields(source, "label") == [[1, 1, 0], [0, -1, 0], [0, 0, 1]]
    assert opened(tmp_path, {"labels": [[2], [0]]}).class_names == ("0", "1", "2")
    with pytest.raises(DataError, match=r"train.parquet row 1: the label is 0.5, no whole number"):
        opened(tmp_path, {"labels": [[1.0], [0.5]]})


def test_a_file_whose_lists_are_all_missing_has_no_labels(tmp_path: Path) -> None:
    kind = pa.list_(pa.int64())
    opened(tmp_path, {"labels": pa.array([None, None], kind)})
    (tmp_path / "train.parquet").rename(tmp_path / "test.parquet")
    opened(tmp_path, {"labels": pa.array([[1], [0, 1]], kind)})
    source = data.open_source(f"parquet:{tmp_path}/*.parquet", split="test")
    assert source.class_names == ("0", "1")
    assert fields(source, "label") == [[0, 0], [0, 0]]
    assert source.spec["label"].dtype == np.uint8


def test_numbers_are_chosen_by_name(tmp_path: Path) -> None:
    columns = {"mass [kg]": [0.5, None, 2.5], "age": [1, 2, None], "word": ["a", "b", "c"]}
    source = opened(tmp_path, columns, "?target=mass,age")
    assert source.class_names == ("mass [kg]", "age")
    np.testing.assert_array_equal(fields(source, "value"), [[0.5, 1], [np.nan, 2], [2.5, np.nan]])
    source = opened(tmp_path, columns, "?target=mass")
    assert len(source) == 2
    assert source.account is not None
    assert source.account.left_out["without a number"].first == ("train.parquet row 1",)
    with pytest.raises(UserError, match=r"the column word of .* holds string, and no numbers"):
        opened(tmp_path, columns, "?target=word")
    with pytest.raises(UserError, match=r"target= and .label= exclude each other"):
        opened(tmp_path, columns, "?target=age&label=word")
    assert is_number(pa.float16())
    assert not is_number(pa.string())
