# SPDX-License-Identifier: Apache-2.0
"""A CSV file of paths and labels is a dataset; what is wrong with one is a line that says where."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.photos import tiny
from tests.refusals import refused_by
from vit_jax.data import open_source
from vit_jax.data.account import LeftOut
from vit_jax.data.sources import look
from vit_jax.data.sources.base import account_of
from vit_jax.errors import UserError
from vit_jax.storage import remote


def table(folder: Path, text: str, images: int = 12) -> str:
    (folder / "photos").mkdir(exist_ok=True)
    for i in range(images):
        (folder / "photos" / f"{i}.jpg").write_bytes(tiny(f"{i}"))
    file = folder / "mine.csv"
    file.write_text(text)
    return str(file)


def rows(header: str, *more: str) -> str:
    return "\n".join([header, *(f"photos/{i}.jpg,{i % 2 + 9}" for i in range(12)), *more, ""])


def test_splits_are_drawn_where_there_are_none(tmp_path: Path) -> None:
    name = table(tmp_path, rows("path,label"))
    sources = {s: open_source(name, split=s) for s in ("train", "val", "test")}
    assert sum(map(len, sources.values())) == 12
    assert min(map(len, sources.values())) > 0
    assert sources["train"].class_names == ("9", "10")  # by value
    assert sources["train"].drawn
    example = sources["val"].read(0)
    assert example["image"].startswith(b"\x89PNG")
    number = int(sources["val"].example_id(0).rpartition("/")[2].removesuffix(".jpg"))
    assert example["label"] == number % 2


def test_a_column_of_splits(tmp_path: Path) -> None:
    text = "split,label,path\nfit,b,photos/0.jpg\nvalid,a,photos/1.jpg\nfit,a,photos/2.jpg\n"
    name = table(tmp_path, text)
    fit, val = open_source(name, split="fit"), open_source(name, split="val")
    assert (len(fit), len(val), fit.class_names) == (2, 1, ("a", "b"))
    assert [fit.read(i)["label"] for i in range(2)] == [1, 0]
    assert not fit.drawn
    assert len(open_source(name, split="whole")) == 3
    assert fit.digest() != val.digest()
    with refused_by("data.sources.partition.check_no_seed"):
        open_source(f"{name}?split_seed=2", split="fit")


def test_other_labels_are_other_data(tmp_path: Path) -> None:
    text = rows("path,label")
    before = open_source(table(tmp_path, text), split="whole").digest()
    assert open_source(table(tmp_path, text), split="whole").digest() == before
    changed = text.replace("0.jpg,9", "0.jpg,10")
    assert open_source(table(tmp_path, changed), split="whole").digest() != before


def test_addresses_without_a_beginning_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "MOST_FAR", 3)  # so that nobody asks for them
    addresses = [f"{kind}://b/{i}.jpg" for kind in ("gs", "s3") for i in range(2)]
    text = "path,label\n" + "".join(f"{address},a\n" for address in addresses)
    source = open_source(table(tmp_path, text), split="whole")
    assert [source.example_id(i) for i in range(4)] == addresses


def test_paths_of_a_table_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MOST_FAR", 3)
    paths = ("./a/0.jpg", "a\\1.jpg", " a/./2.jpg", "a//3.jpg", "..b/4.jpg")
    text = "path,label\n" + "".join(f"{path},a\n" for path in paths)
    monkeypatch.setattr(remote, "read", lambda *_: text.encode())
    source = open_source("csv:gs://b/mine.csv", split="whole")
    found = [source.example_id(i).removeprefix("gs://b/") for i in range(5)]
    assert found == ["a/0.jpg", "a/1.jpg", "a/2.jpg", "a//3.jpg", "..b/4.jpg"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("file,label\nphotos/0.jpg,a\n", "has the columns file, label; its first line must name"),
        ("", "has the columns nothing"),
        ("path,label\n", "lists no images"),
        ("path,label\nphotos/0.jpg,\n", "line 2: give a value for path, label"),
        ("path,label\nphotos/0.jpg\n", "line 2: give a value for path, label"),
        ("path,label\nphotos/0.jpg,a\nphotos/99.jpg,a\n", "line 3: there is no file photos/99"),
        ("path,label,split\nphotos/0.jpg,a,\n", "line 2: give a value for path, label, split"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        open_source(table(tmp_path, text), split="whole")
    assert "mine.csv" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with refused_by("storage.files.refused") as caught:
        open_source(str(tmp_path / "none.csv"))
    assert "none.csv" in str(caught.value)
    (tmp_path / "odd.csv").write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(UserError, match="can't decode"):
        open_source(str(tmp_path / "odd.csv"))


def opened(folder: Path, text: str, split: str = "whole", images: int = 12) -> Any:
    return open_source(table(folder, text, images), split=split)


def test_doubled_rows_count_once_and_contradictions_are_refused(tmp_path: Path) -> None:
    head = "path,label,split\n"
    first = "photos/0.jpg,a,train\n"
    photo, up = tmp_path / "photos" / "0.jpg", f"../{tmp_path.name}/photos/0.jpg"
    spelled = "./photos/0.jpg,a,train\n", "photos//0.jpg, a ,Train\n", f"{photo},a,'train'\n"
    for again in (first, *spelled, f"{up},a,train\n"):
        source = opened(tmp_path, head + first + "photos/1.jpg,b,val\n" + again)
        assert (len(source), source.account.found) == (2, 3)
        assert source.account.left_out["doubled rows"].count == 1
    for again, why in (
        ("photos/0.jpg,b,train\n", "lines 2 and 3: .*0.jpg has the labels 'a' and 'b'"),
        ("./photos/0.jpg,b,train\n", "lines 2 and 3: .*0.jpg has the labels 'a' and 'b'"),
        (f"{photo},b,train\n", "lines 2 and 3: .*0.jpg has the labels 'a' and 'b'"),
        ("photos/0.jpg,a,test\n", "lines 2 and 3: .*0.jpg has the splits 'train' and 'test'"),
        ("photos/0.jpg,,train\n", "lines 2 and 3: .*0.jpg has the labels 'a' and 'none'"),
    ):
        with pytest.raises(UserError, match=why):
            opened(tmp_path, head + first + again)
    assert len(opened(tmp_path, "path,label\nphotos/0.jpg,0\nphotos/0.jpg,00\n")) == 1


def test_two_columns_of_labels_agree_or_are_refused(tmp_path: Path) -> None:
    for rows, why in (
        ("a,a\nb,b\n", ""),
        ("0,cat\n1,dog\n", ""),
        ("a,b\nb,b\n", "the columns label and class disagree .line 2 has 'a' and 'b'"),
        ("0,cat\n0,dog\n", "disagree .line 2 has '0' and 'cat', line 3 has '0' and 'dog'"),
        ("0,0.5\n0,0.7\n", "disagree"),
    ):
        lines = [f"photos/{i}.jpg,{row}" for i, row in enumerate(rows.splitlines())]
        text = "\n".join(["path,label,class", *lines, ""])
        if why:
            with pytest.raises(UserError, match=why):
                opened(tmp_path, text)
        else:
            assert len(opened(tmp_path, text)) == 2
    assert len(opened(tmp_path, "path,label,width\nphotos/0.jpg,a,3\nphotos/1.jpg,a,4\n")) == 2


def test_files_that_are_gone_are_left_out_and_said(tmp_path: Path) -> None:
    source = opened(tmp_path, rows("path,label", "photos/98.jpg,9", "photos/99.jpg,9"))
    gone = LeftOut(2, ("photos/98.jpg", "photos/99.jpg"))
    assert source.account.left_out == {"of files that are not there": gone}
    assert (len(source), source.account.found) == (12, 14)
    text = "path,label\nphotos/0.jpg,a\nphotos/98.jpg,a\nphotos/99.jpg,a\n"
    with pytest.raises(UserError, match=r"line 3: there is no file photos/98.jpg .*nor are 1 othe"):
        opened(tmp_path, text)


def test_paths_as_windows_and_other_file_systems_write_them(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "café.jpg").write_bytes(tiny("é"))
    composed, decomposed = (unicodedata.normalize(f, "photos/café.jpg") for f in ("NFC", "NFD"))
    for path in ("photos\\0.jpg", " photos/0.jpg ", ".\\photos\\0.jpg", composed, decomposed):
        assert opened(tmp_path, f"path,label\n{path},a\n").read(0)["image"].startswith(b"\x89PNG")
    both = opened(tmp_path, f"path,label\n{composed},a\n{decomposed},a\n")
    assert both.account.left_out["doubled rows"].count == 1


def test_rows_without_a_label(tmp_path: Path) -> None:
    labels = ("a", "", "nan", "-1", "'a '")
    lines = [f"photos/{i}.jpg,{label}" for i, label in enumerate(labels)]
    source = opened(tmp_path, "\n".join(["path,label", *lines, ""]))
    assert source.labels.tolist() == [0, -1, -1, -1, 0]
    assert source.account.notes == ("3 of 5 without a label",)
    assert [name for _, name in source.rows()] == ["a", "", "", "", "a"]
    assert source.digest()
    with pytest.raises(UserError, match="line 2: the label is '-2'; there is none below 0 but -1"):
        opened(tmp_path, "path,label\nphotos/0.jpg,-2\n")


def test_spellings_of_a_split_are_one(tmp_path: Path) -> None:
    names = ("train", " Train", "TRAIN", "Fold  1", "fold 1", "whole")
    lines = [f"photos/{i}.jpg,a,{name}" for i, name in enumerate(names)]
    text = "\n".join(["path,label,split", *lines, ""])
    for split, count in (("training", 3), ("FOLD 1", 2), ("whole", 1)):
        assert len(opened(tmp_path, text, split)) == count
    assert opened(tmp_path, text).account.used == {"train": 3, "fold 1": 2, "whole": 1}
    two = opened(tmp_path, text.replace("whole", "Training"))
    assert two.account.notes == ("'train' and 'Training' are 2 splits, of one meaning",)


PATHS = st.sampled_from(["photos/0.jpg", "./photos/0.jpg", "photos/1.jpg", "photos/9.jpg", "gone"])
WORDS = st.sampled_from(["a", "a ", "A", "b", "", "1"])
ROWS = st.tuples(PATHS, WORDS, st.sampled_from(["train", "Train", "val"]))


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_rows_are_used_or_left_out_or_the_table_is_refused(tmp_path_factory, drawn) -> None:
    folder = tmp_path_factory.mktemp("rows")
    text = "path,label,split\n" + "".join(f"{','.join(row)}\n" for row in drawn)
    of: dict[str, set[tuple[str, str]]] = {}
    for path, label, split in drawn:
        of.setdefault(path.removeprefix("./"), set()).add((label.strip(), split.lower()))
    gone = sum(path == "gone" for path, _, _ in drawn)
    contradicts = any(len(each) > 1 for path, each in of.items() if path != "gone")
    if contradicts or 2 * gone >= len(drawn) or not any(label for _, label, _ in drawn):
        with pytest.raises(UserError):
            opened(folder, text, images=10)
        return
    source = opened(folder, text, images=10)
    assert source.account.found == len(drawn)
    assert sum(source.account.used.values()) == len(source) == len(of) - bool(gone)


def test_images_that_cannot_be_read_are_left_out_and_copies_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "MOST_FAR", 3)  # of a bucket: nothing here is far
    name = table(tmp_path, rows("path,label"), images=20)
    (tmp_path / "photos" / "3.jpg").write_bytes(b"none")
    (tmp_path / "photos" / "5.jpg").write_bytes(tiny("7"))  # of one label
    (tmp_path / "photos" / "8.jpg").write_bytes(tiny("9"))  # of two
    account = account_of(open_source(name, split="whole"))
    assert account is not None
    assert sum(account.used.values()) == 11
    assert account.left_out == {"without an image in it": (1, ("photos/3.jpg",))}
    assert account.notes == (
        "1 image has two classes or more (by content), first: photos/8.jpg = photos/9.jpg",
        "1 image is there twice or more in a class (by content), first: "
        "photos/5.jpg = photos/7.jpg",
    )
    before = open_source(f"{name}?rules=1", split="whole")
    assert (len(before), account_of(before)) == (12, None)
    assert [len(open_source(f"{name}?rules=1", split=s)) for s in ("train", "val")] == [8, 2]
    for i in range(12):
        (tmp_path / "photos" / f"{i}.jpg").write_bytes(b"none")
    with pytest.raises(UserError, match="none of its 12 images can be read"):
        open_source(name, split="whole")
