# SPDX-License-Identifier: Apache-2.0
"""Parquet files as a source; row groups are kept up to a number of bytes."""

import concurrent.futures
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.refusals import refused_as
from tests.shards import as_parquet, hub_table
from vit_jax.data import open_source
from vit_jax.data.sources.sharded.row_groups import RowGroups
from vit_jax.errors import DataError, UserError


@pytest.fixture(scope="module")
def source(folder):
    return open_source(f"folder:{folder}", split="train")


@pytest.fixture
def name(source, folder, tmp_path: Path) -> str:
    as_parquet(source, tmp_path / "data", "train", 2, rows=5)
    as_parquet(open_source(f"folder:{folder}", split="val"), tmp_path / "data", "validation", 1)
    return f"parquet:{tmp_path}/data/*.parquet"


def test_it_is_the_source_that_it_was_written_from(source, name: str, folder: Path) -> None:
    found = open_source(name, split="train")
    found.read(3)
    found = pickle.loads(pickle.dumps(found))
    assert found.class_names == source.class_names
    assert [found.read(i) for i in range(24)] == [source.read(i) for i in range(24)]
    assert found.example_id(23).endswith("train-00001-of-00002.parquet row 11")
    part = open_source(name, split="val[1:]+train[20:]")
    expected = open_source(f"folder:{folder}", split="val[1:]+train[20:]")
    assert [part.read(i) for i in range(8)] == [expected.read(i) for i in range(8)]
    assert part.digest() != found.digest() == open_source(name, split="train").digest()


def test_without_metadata_and_splits(tmp_path: Path) -> None:
    words = [None, "owl", "ant", "owl"]
    table = hub_table({"jpg": [b"a", None, b"c", b"d"], "label": words, "width": [1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "0.parquet")
    found: Any = open_source(str(tmp_path / "0.parquet"), split="whole")
    assert found.class_names == ("ant", "owl")
    assert found.labels.tolist() == [-1, 1, 0, 1]
    assert found.read(3) == {"image": b"d", "label": 1}
    assert found.account.notes[-1] == "1 of 4 rows have no image"
    with pytest.raises(DataError, match=r"0.parquet row 1: the row holds no image, or its path"):
        found.read(1)


def test_columns_that_are_not_read_are_said(tmp_path: Path) -> None:
    images = [{"bytes": b"x", "path": None}] * 2
    for column, note in (
        (
            {"Label": ["a", "b"]},
            "so there are no labels; ?label=Label at the end of the name reads",
        ),
        ({"y": [0, 1]}, "so there are no labels; ?label=y at"),
        ({"label": [0, 1], "Split": ["train", "val"]}, "the column Split is not read; the names"),
        ({"width": [3, 4]}, "2 of 2 without a label"),
        ({"label": [0, 1]}, ""),
    ):
        pq.write_table(pa.table({"image": images, **column}), tmp_path / "0.parquet")
        found: Any = open_source(str(tmp_path / "0.parquet"), split="whole")
        assert note in "".join(found.account.notes[-1:])
        assert bool(found.account.notes) == bool(note)
    read: Any = open_source(f"{tmp_path}/0.parquet?label=none", split="whole")
    assert read.account.notes == ("2 of 2 without a label",)


def test_columns_that_disagree_in_a_later_file_are_refused(tmp_path: Path) -> None:
    images = [{"bytes": b"x", "path": None}] * 2
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        table = pa.table({"image": images, "label": [0, 1], "class": names})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    name = f"parquet:{tmp_path}/*.parquet"
    assert open_source(f"parquet:{tmp_path}/1.parquet", split="whole").class_names == ("0", "1")
    with pytest.raises(UserError, match=r"label and class disagree \(row 0 has 0 and 'a', row 2"):
        open_source(name, split="whole")
    assert open_source(f"{name}?label=class", split="whole").class_names == ("a", "b")


def test_no_rows_and_labels_that_are_no_ids(tmp_path: Path) -> None:
    for labels, message in (
        ([], ("data.sources.partition.absolute_slices", "")),
        ([1 << 63], "0.parquet: not a readable Parquet file"),
    ):
        column = pa.array([b"a"] * len(labels), pa.binary())
        table = pa.table({"image": column, "label": pa.array(labels, pa.uint64())})
        pq.write_table(table, tmp_path / "0.parquet")
        with refused_as(message):
            open_source(str(tmp_path / "0.parquet"), split="whole")


def test_a_file_that_is_cut_or_changes(source, name: str, tmp_path: Path) -> None:
    found = open_source(name, split="train")
    file = tmp_path / "data" / "train-00001-of-00002.parquet"
    found.read(12)  # rows 12 to 16 are kept
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert found.read(13) == source.read(13)
    with pytest.raises(DataError, match=r"row 5: the file changed after the run began"):
        found.read(17)
    with pytest.raises(DataError, match=r"00001-of-00002.parquet: not a readable Parquet file"):
        open_source(name, split="train")
    file.write_bytes(whole)
    damaged = bytearray(whole)
    damaged[20:4000] = bytes(3980)  # before the labels
    file.write_bytes(bytes(damaged))
    other = open_source(name, split="train")
    with pytest.raises(DataError, match=r"00001-of-00002.parquet row 0: "):
        other.read(12)


def test_row_groups_are_kept_by_their_bytes_and_loaded_once() -> None:
    loaded = []

    def load(key: int) -> np.ndarray:
        loaded.append(key)
        return np.zeros(key, np.uint8)

    groups = RowGroups(load, max_bytes=100)
    for key in (40, 50, 40, 30, 40):  # 50 has to go
        assert groups.get(key).nbytes == key
    assert loaded == [40, 50, 30]
    groups.get(200)  # larger than all, and alone
    groups.get(200)
    groups.get(30)
    assert loaded == [40, 50, 30, 200, 30]


def test_threads_that_want_the_same_row_group_wait_for_one() -> None:
    entered, go, loads = threading.Event(), threading.Event(), []

    def load(key: int) -> np.ndarray:
        loads.append(key)
        entered.set()
        go.wait(10)
        if len(loads) == 1:
            raise ValueError("broken")
        return np.zeros(1)

    groups = RowGroups(load)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one = pool.submit(groups.get, 1)
        entered.wait(10)
        two = pool.submit(groups.get, 1)
        go.set()
        assert isinstance(one.exception(), ValueError)
        two.exception()
    assert groups.get(1).nbytes == 8  # an error is not kept


def test_bytes_are_counted_right_by_many_threads() -> None:
    groups = RowGroups(lambda key: np.zeros(key, np.uint8), max_bytes=300)
    keys = np.random.default_rng(0).integers(1, 60, 4000).tolist()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [found.nbytes for found in pool.map(groups.get, keys)] == keys
    held = [future.result().nbytes for future in groups._held.values()]
    assert sum(held) == groups._bytes <= 300


def test_row_groups_that_are_read_again_and_again_are_told(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Any = open_source(name, split="train")
    found._held = RowGroups(found._load, 1)
    for _ in range(60):
        assert found.read(0) != found.read(23)
    assert capsys.readouterr().err.count("write the data once as ArrayRecord: vit_jax prepare") == 1
