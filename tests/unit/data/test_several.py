# SPDX-License-Identifier: Apache-2.0
"""Several labels and numbers of one's own images: what tables, Parquet and tars say of them."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.shards import write_tar
from vit_jax import data
from vit_jax.data import several
from vit_jax.errors import DataError, UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(4):
        cv2.imwrite(str(tmp_path / f"{k}.png"), np.full((4, 4), 60 * k, np.uint8))
    return tmp_path


def table(folder: Path, head: str, *cells: str, options: str = "") -> data.Source:
    rows = "".join(f"{k}.png,{cell},train\n" for k, cell in enumerate(cells))
    (folder / "t.csv").write_text(f"path,{head},split\n{rows}")
    return data.open_source(f"csv:{folder}/t.csv{options}", split="train")


def fields(source: data.Source, name: str) -> list:
    return [source.read(k)[name].tolist() for k in range(len(source))]


def test_labels_with_bars_are_several_and_a_question_mark_is_not_known(folder: Path) -> None:
    source = table(folder, "label", "dog | cat", "?cat|bird", "", "\"['dog', 'cat']\"")
    assert source.class_names == ("bird", "cat", "dog")
    assert source.multi_label
    assert source.labels is None
    assert fields(source, "label") == [[0, 1, 1], [1, -1, 0], [0, 0, 0], [0, 1, 1]]
    assert source.spec["label"].dtype == np.int8 == source.read(0)["label"].dtype
    assert source.account is not None
    assert source.account.line() == (
        "3 classes, 1.25 labels an image in the mean, 1 not known in 1 split (train 4); "
        "all 4 rows used"
    )
    assert [row[1] for row in source.rows()] == ["cat|dog", "bird|?cat", "", "cat|dog"]


def test_bars_in_names_are_escaped_or_read_as_one_label(folder: Path) -> None:
    assert table(folder, "label", "a|b", "c", "c", "c", options="?labels=one").class_names == (
        "a|b",
        "c",
    )
    source = table(folder, "label", r"a\|b", "c", "c", "c")
    assert source.class_names == ("a|b", "c")
    assert not source.multi_label
    assert source.rows()[0][1] == r"a\|b"
    source = table(folder, "label", r"a\|b|c", r"\?d", "c", "c")
    assert source.class_names == ("?d", "a|b", "c")
    assert [row[1] for row in source.rows()[:2]] == [r"a\|b|c", r"\?d"]
    source = table(folder, "label", "a", "b", "a", "?b", options="?labels=several")
    assert fields(source, "label") == [[1, 0], [0, 1], [1, 0], [0, -1]]
    with pytest.raises(UserError, match=r"labels=two must be one or several"):
        table(folder, "label", "a", "b", "a", "b", options="?labels=two")
    with pytest.raises(UserError, match=r"line 2: 'a' is a label and, by '\?a', not known"):
        table(folder, "label", "a|?a", "b", "a", "b")


def test_numbers_are_columns_and_what_is_not_known_is_nan(folder: Path) -> None:
    source = table(
        folder, "Mass [kg],age", "1.5,3", "2,#N/A", ",<NA>", "4e1,7", options="?target=mass,age"
    )
    assert source.class_names == ("Mass [kg]", "age")
    assert source.spec["value"].shape == (2,)
    np.testing.assert_array_equal(fields(source, "value"), [[1.5, 3], [2, np.nan], [40, 7]])
    assert source.account is not None
    assert source.account.left_out["without a number"].count == 1
    assert "Mass [kg] from 1.5 to 40; age from 3 to 7, 1 not known" in source.account.line()
    assert source.columns() == ("path", "Mass [kg]", "age")
    assert source.rows()[1][1:] == ("2.0", "")
    some = data.Sample(source, np.array([2, 0], np.int32))
    np.testing.assert_array_equal(some.values, [[40, 7], [1.5, 3]])
    assert table(folder, "Target", "1", "2", "3", "4").class_names == ("Target",)
    with pytest.raises(UserError, match="has the column mass twice"):
        table(folder, "mass,Mass", "1,2", "1,2", "1,2", "1,2", options="?target=Mass")
    for cells, options, why in (
        (("x", "1", "1", "1"), "", "line 2: the column target: 'x' is no number"),
        (("inf", "1", "1", "1"), "", "line 2: the column target: 'inf' is no finite number"),
        (("1", "1", "1", "1"), "?target=wide", "unknown column of .*target=wide 'wide'"),
        (("1", "1", "1", "1"), "?target=target,target", "names a column twice"),
        (("1", "1", "1", "1"), "?target=target&labels=one", "of labels, and .target= of numbers"),
    ):
        with pytest.raises(UserError, match=why):
            table(folder, "target", *cells, options=options)
    with pytest.raises(UserError, match=r"has numbers and no classes; leave data.classes"):
        data.select_classes(source, (0,), cache=False)


def test_lines_of_a_member_and_lists_in_its_json_are_several_labels(tmp_path: Path) -> None:
    image = cv2.imencode(".png", np.zeros((4, 4), np.uint8))[1].tobytes()
    files = {
        "a.png": image,
        "a.cls": b"dog\ncat\n",
        "b.png": image,
        "b.json": b'{"label": ["dog"]}',
    }
    files |= {"c.png": image, "c.cls": b"?cat\r\nant"}
    write_tar(tmp_path / "train.tar", files)
    source = data.open_source(f"tar:{tmp_path}/train.tar", split="train")
    assert source.class_names == ("ant", "cat", "dog")
    assert fields(source, "label") == [[0, 1, 1], [0, 0, 1], [1, -1, 0]]
    one = data.open_source(f"tar:{tmp_path}/train.tar?labels=one", split="train")
    assert not one.multi_label
    assert "dog cat" in one.class_names
    (tmp_path / "classnames.txt").write_text("dog\ncat\nant\nbee")
    named = data.open_source(f"tar:{tmp_path}/train.tar", split="train")
    assert named.class_names == ("dog", "cat", "ant", "bee")
    assert fields(named, "label")[0] == [1, 1, 0, 0]
    (tmp_path / "classnames.txt").write_text("dog\nant")
    with pytest.raises(DataError, match=r"train.tar/a.png: the label is 'cat'; classes are 'dog'"):
        data.open_source(f"tar:{tmp_path}/train.tar", split="train")


def test_sets_are_taken_by_rows() -> None:
    sets = several.read(["1\n10", "", "2"]).labels
    assert isinstance(sets, several.LabelSets)
    assert sets.first().tolist() == [0, -1, 1]
    assert sets.take([2, 0]).example(1)["label"].tolist() == [1, 0, 1]
    assert several.read(["1\n10", "2"]).classes == ("1", "2", "10")
