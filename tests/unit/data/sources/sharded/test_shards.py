# SPDX-License-Identifier: Apache-2.0
"""Splits by the names of files, class ids by labels of any kind."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax.data.sources.base import SplitError
from vit_jax.data.sources.sharded import shards
from vit_jax.errors import DataError, UserError
from vit_jax.storage import remote
from vit_jax.storage.remote import FileInfo


def splits(*paths: str) -> list[str]:
    return shards.splits_of([FileInfo(path, 1, "") for path in paths])


def test_the_name_of_a_file_tells_its_split() -> None:
    names = {
        "gs://b/test/imagenet1k-train-0000.tar": "train",  # the file's name before the folder's
        "d/imagenet1k-validation-63.tar": "validation",
        "cifar10_Test.parquet": "Test",
        "coco/val2017-00.tar": "val",
        "wds/test/0.tar": "test",
        "data/train-00000-of-00294.parquet": "train",
        "data/unsplit_7-00000-of-00001.parquet": "unsplit_7",
    }
    assert splits(*names) == list(names.values())
    assert splits("data/latest-000.tar", "train/x/00001.tar") == ["", ""]
    with pytest.raises(UserError, match=r"d/more-1.tar tells no split .* as that of train-0.tar"):
        splits("d/train-0.tar", "d/more-1.tar")


def choose(split: str, names: list[str], labels: list[int], seed: int = 0) -> list[int]:
    counts = [len(labels) // len(names)] * len(names)
    keys = [f"{i}" for i in range(len(labels))]
    members = shards.members_of(names, counts, lambda: keys, np.array(labels), seed, "x")
    return shards.choose(split, members, seed, "x")[1].tolist()


def test_splits_with_slices_or_drawn() -> None:
    two = ["train", "validation", "train"]
    assert choose("train", two, [0] * 6) == [0, 1, 4, 5]
    assert choose("val[:50%]+train[3:]", two, [0] * 6) == [2, 5]
    labels = [0, 1] * 10
    drawn = {name: choose(name, ["", ""], labels) for name in ("train", "val", "test")}
    assert (
        sorted(itertools.chain(*drawn.values()))
        == list(range(20))
        == choose("whole", ["", ""], labels)
    )
    assert min(len(found) for found in drawn.values()) > 0
    assert choose("val", ["", ""], labels, seed=5) != drawn["val"]
    with refused_by("data.sources.partition.absolute_slices", kind=SplitError) as caught:
        choose("test", two, [0] * 6)
    assert "train, validation" in str(caught.value)
    with refused_by("data.sources.partition.check_no_seed"):
        choose("train", two, [0] * 6, seed=5)


@pytest.mark.parametrize(
    "labels, names, expected",
    [
        ([b"0", b"3", b"", b"-1", b"007"], (), (tuple("01234567"), [0, 3, -1, -1, 7])),
        (np.array([2, -1]), (), (("0", "1", "2"), [2, -1])),
        (np.array([1]), ("cat", "dog"), (("cat", "dog"), [1])),
        ([b"dog", b"12", b"cat", b""], (), (("12", "cat", "dog"), [2, 0, 1, -1])),
        ([b"dog", b"dog"], ("x", "dog"), (("x", "dog"), [1, 1])),
        ([b"", b""], (), ((), [-1, -1])),
        ([], (), ((), [])),
    ],
)
def test_class_ids(labels, names, expected) -> None:
    classes, ids = shards.class_ids(np.array(labels), names, str)
    assert (classes, ids.tolist()) == expected


@pytest.mark.parametrize(
    "labels, names, message",
    [
        ([b"1", b"2"], ("a", "b"), "row 1: the label is '2'; classes are 'a' to 'b'"),
        ([b"-2"], (), "row 0: the label is '-2'; there is none"),
        ([b"a", b"c"], ("a", "b"), "row 1: the label is 'c'; classes are 'a' to 'b'"),
        (np.array([0, 1 << 40]), (), "row 1: the label is 1099511627776; classes are '0' to"),
    ],
)
def test_a_label_that_is_no_class_is_one_line(labels, names, message: str) -> None:
    with pytest.raises(DataError) as caught:
        shards.class_ids(np.array(labels), names, lambda i: f"row {i}")
    assert str(caught.value).startswith(message)


def test_names_of_classes_lie_beside_or_above_a_folder_of_a_split(tmp_path: Path) -> None:
    (tmp_path / "classnames.txt").write_text("a cat\nüber\n")
    found = [
        FileInfo(str(tmp_path / folder / "0.tar"), 1, "") for folder in ("train", "shards", "")
    ]
    names = [shards.class_names_beside([file]) for file in found]
    assert names == [("a cat", "über"), (), ("a cat", "über")]
    (tmp_path / "classnames.txt").write_bytes(b"\xef\xbb\xbfa cat \r\nb\r\n\r\n")
    assert shards.class_names_beside(found) == ("a cat", "b")
    (tmp_path / "classnames.txt").write_text('{"0": ["n01440764", "tench"], "1": ["n2", "x"]}')
    assert shards.class_names_beside(found) == ("tench", "x")
    for text, why in ((b"a\n\nb", "the name of class 1 is ''"), (b"caf\xe9", "can't decode")):
        (tmp_path / "classnames.txt").write_bytes(text)
        with pytest.raises(DataError, match=f"classnames.txt: .*{why}"):
            shards.class_names_beside(found)


def test_labels_and_splits_are_spelled_as_everywhere() -> None:
    labels = np.array([b" a", "cafe\u0301".encode(), b"'a'", b"nan", b"NaN "])
    classes, ids = shards.class_ids(labels, (), str)
    assert (classes, ids.tolist()) == (("a", "café"), [0, 1, 0, -1, -1])
    names = ["train", "Train", " train"]
    assert {*shards.members_of(names, [1, 2, 1], list, np.zeros(4, int), 0, "x")} == {"train"}
    with pytest.raises(DataError, match="row 1: the label is 'x', and two classes are called so"):
        shards.class_ids(np.array([b"y", b"x"]), ("x", "y", "x"), lambda i: f"row {i}")


def test_what_labels_leave_open_is_said() -> None:
    def notes(*labels: bytes, names: tuple[str, ...] = ()) -> list[str]:
        given = np.array(labels)
        classes, ids = shards.class_ids(given, names, str)
        return shards.label_notes(given, ids, classes, named=bool(names))

    assert notes(b"0", b"1") == []
    assert notes(b"1", b"3", b"") == [
        "2 of the 4 classes have no example (0, 2)",
        "1 of 3 without a label",
    ]
    assert notes(b"1", b"3", names=tuple("abcd")) == []
    assert notes(b"0", b"00") == ["the labels '0' (1) and '00' (1) are one number, and one class"]
    (note,) = notes(b"Cat", b"cat", b"cat")
    assert note.startswith("the labels 'Cat' (1) and 'cat' (2) are 2 classes")


def test_a_server_may_forbid_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str, most: int = 0) -> bytes:
        raise error

    monkeypatch.setattr(remote, "read", read)
    signed = "https://host/train/0.tar?sig=val/dev"
    error: Exception = remote.ForbiddenError("no right")
    assert shards.class_names_beside([FileInfo(signed, 1, "")]) == ()
    assert (shards.base_name(signed), splits(signed)) == ("0.tar", ["train"])
    error = remote.RemoteError("no answer")
    with pytest.raises(remote.RemoteError, match="no answer"):
        shards.class_names_beside([FileInfo(signed, 1, "")])


def test_a_pattern_that_matches_nothing_is_one_line() -> None:
    with pytest.raises(UserError, match=r"tar:no/such.tar matches no file; write it as tar:DIR/"):
        shards.find("no/such.tar", "tar")


def test_a_shard_that_a_pattern_names_must_be_there(tmp_path: Path) -> None:
    for i in (0, 2):
        (tmp_path / f"{i}.tar").touch()
    with pytest.raises(UserError, match=r"/\{0..2\}.tar names .*/1.tar, which is not there"):
        shards.find(f"{tmp_path}/{{0..2}}.tar", "tar")
    assert len(shards.find(f"{tmp_path}/{{0,2}}.t*", "tar")[1].files) == 2


def test_a_config_of_a_card_is_for_repositories_alone() -> None:
    with pytest.raises(UserError, match=r"^tar:x\?config=a: \?config= is for hf: alone; leave it"):
        shards.find("x?config=a", "tar")


def test_a_set_that_lacks_a_shard_or_examples_is_refused(tmp_path: Path) -> None:
    files = [FileInfo(f"{tmp_path}/t-0000{i}-of-00003.tar", 1, "") for i in (0, 2)]
    with pytest.raises(DataError, match=r"t-.* is not complete: there is no t-00001-of-00003\.tar"):
        shards.complete(files, "x", exact=False)
    told = "^x: the card tells 1,005 examples of train, and the files hold 5; download them again, "
    with pytest.raises(DataError, match=told):
        shards.compare({"train": 1005}, {"train": 5}, "x")
