# SPDX-License-Identifier: Apache-2.0
"""Class folders in tars label what has no label, and folders that are no classes do not."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.shards import write_tar
from vit_jax.data import open_source
from vit_jax.data.sources.sharded import tar_files


def read(*names: str) -> tuple[tuple[str, ...], list[int], list[str]] | None:
    found = tar_files.read(np.array([name.encode() for name in names], np.bytes_))
    return found and (found.classes, found.ids.tolist(), found.splits)


def test_a_class_is_a_folder_below_what_all_have_in_common() -> None:
    for names, found in (
        (("cat/1.jpg", "dog/1.jpg"), (("cat", "dog"), [0, 1], [])),
        (("./cat/1.jpg", "./dog/sub/1.jpg"), (("cat", "dog"), [0, 1], [])),
        (("data/b/10/1.jpg", "data/b/9/1.jpg"), (("10", "9"), [0, 1], [])),
        (("train/cat/1.jpg", "val/cat/2.jpg"), (("cat",), [0, 0], ["train", "val"])),
        (("x/Train/b/1.jpg", "x/Train/a/2.jpg"), (("a", "b"), [1, 0], ["Train", "Train"])),
        (("cafe\u0301/1.jpg", "café/2.jpg", "b/3.jpg"), (("b", "café"), [1, 1, 0], [])),
        (("nan/1.jpg", "-1/2.jpg"), (("-1", "nan"), [1, 0], [])),
        (
            ("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "train/4.jpg"),
            (("a", "b"), [0, 1, 0], ["train", "train", "val"]),
        ),
        (("train/a/1.jpg", "val/2.jpg"), (("a",), [0, -1], ["train", "val"])),
        (("a/1.jpg", "x/a.jpg", "3.jpg"), (("a", "x"), [0, 1], [])),
        (("d/val/a/1.jpg", "d/val/b/2.jpg", "3.jpg"), (("a", "b"), [0, 1], ["val", "val"])),
        (("a/x/1.jpg", "b/x/2.jpg"), (("a", "b"), [0, 1], [])),
        (("a/1.jpg", "b/2.jpg", "3.jpg", "4.jpg", "5.jpg"), None),
        (("images/1.jpg", "images/2.jpg"), None),
        (("cat/1.jpg", "2.jpg"), None),
        (("train/1.jpg", "train/2.jpg"), None),
        (("1.jpg",), None),
    ):
        assert read(*names) == found, names


def test_a_tar_of_class_folders_is_the_dataset_that_the_folder_is(tmp_path: Path) -> None:
    names = [f"train/{c}/{i}.jpg" for c in ("dog", "cat") for i in range(4)]
    names += [f"val/{c}/{i}.jpg" for c in ("dog", "cat", "emu") for i in range(2)]
    path = write_tar(tmp_path / "mine.tar", {name: name.encode() for name in names})
    for split, count in (("train", 8), ("val", 6), ("validation", 6)):
        source: Any = open_source(f"tar:{path}", split=split)
        assert len(source) == count
        assert source.class_names == ("cat", "dog", "emu")
        for i in range(count):
            folder = source.read(i)["image"].decode().split("/")[1]
            assert source.class_names[source.labels[i]] == folder
    assert source.account.used == {"train": 8, "val": 6}
    assert "it is that of its folder, SPLIT/CLASS, in the tar" in source.account.notes[0]
    names += ["stray.jpg", "train/stray.jpg"]
    stray: Any = open_source(
        f"tar:{write_tar(tmp_path / 's.tar', {name: name.encode() for name in names})}"
    )
    assert (len(stray), stray.class_names) == (8, ("cat", "dog", "emu"))
    assert {*stray.account.left_out} == {"outside the splits", "beside the class folders"}
    assert stray.account.found == len(names)
    for i in range(8):
        assert f"train/{stray.class_names[stray.labels[i]]}/" in stray.read(i)["image"].decode()
    names = names[:-2]
    unread: Any = open_source(f"tar:{path}?label=none", split="whole")
    assert (unread.class_names, {*unread.labels.tolist()}) == ((), {-1})
    before: Any = open_source(f"tar:{path}?rules=1", split="train")  # of a run begun before
    assert (before.class_names, len(before)) == ((), 12)
    labelled = dict.fromkeys(names, b"x") | {"train/cat/0.cls": b"7"}
    one: Any = open_source(f"tar:{write_tar(tmp_path / 'b.tar', labelled)}", split="whole")
    assert one.labels.tolist().count(-1) == len(names) - 1


def test_two_folders_that_look_alike_are_said(tmp_path: Path) -> None:
    files = {f"{name}/{i}.jpg": b"x" for name in ("Cat", "cat", "dog") for i in range(2)}
    source: Any = open_source(f"tar:{write_tar(tmp_path / 'a.tar', files)}", split="whole")
    assert source.class_names == ("Cat", "cat", "dog")
    assert "the labels 'Cat' (2) and 'cat' (2) are 2 classes" in source.account.notes[1]
