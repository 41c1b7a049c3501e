# SPDX-License-Identifier: Apache-2.0
"""A CSV file of paths and labels is a dataset; what is wrong with one is a line that says where."""

from pathlib import Path

import pytest

from tests.photos import tiny
from vit_jax.data import look, open_source
from vit_jax.data.sources import account_of
from vit_jax.errors import UserError


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
    with pytest.raises(UserError, match="has splits of its own; leave out split_seed=2"):
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
    with pytest.raises(UserError, match="No such file"):
        open_source(str(tmp_path / "none.csv"))
    (tmp_path / "odd.csv").write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(UserError, match="can't decode"):
        open_source(str(tmp_path / "odd.csv"))


def test_images_that_cannot_be_read_are_left_out_and_copies_said(tmp_path: Path) -> None:
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
