# SPDX-License-Identifier: Apache-2.0
"""Each layout is read from a bucket as from a disk, without a look beforehand."""

from pathlib import Path

import numpy as np
import pytest

from tests import layouts
from tests.counted import account
from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.storage import remote

BUCKET = "gs://b"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the layouts, and let addresses below gs://b mean files of their folder."""
    root = layouts.write(tmp_path / "b")

    def here(path: str) -> Path:
        return root / path.removeprefix(f"{BUCKET}/")

    def info(path: str) -> remote.FileInfo:
        if not here(path).is_file():
            raise remote.MissingError(path)
        return remote.FileInfo(path, here(path).stat().st_size, "1")

    def find(pattern: str, root_: str = "") -> list[remote.FileInfo]:
        if not remote.is_remote(pattern):
            return own_find(pattern, root_)
        below = sorted(each for each in root.rglob("*") if each.is_file())
        names = [f"{BUCKET}/{each.relative_to(root)}" for each in below]
        prefix = pattern.removesuffix("**")
        return [info(name) for name in names if name.startswith(prefix)]

    own, own_find = remote.read, remote.find

    def read(path: str, *given: int) -> bytes:
        if not remote.is_remote(path):
            return own(path, *given)
        if not here(path).is_file():
            raise remote.MissingError(path)
        return here(path).read_bytes()

    for name, function in (("find", find), ("info", info), ("read", read)):
        monkeypatch.setattr(remote, name, function)
    return root


def test_targets_are_those_of_the_disk(place: Path, subtests: pytest.Subtests) -> None:
    for name in ("masks:{}/scenes", "depth:{}/rooms", "voc:{}/VOC", "yolo:{}/insects"):
        with subtests.test(name):
            split = "whole" if "VOC" in name else "val"
            near = data.open_source(name.format(place), split=split)
            far = data.open_source(name.format(BUCKET), split=split)
            assert len(far) == len(near)
            assert far.class_names == near.class_names
            assert "believed" in account(far).notes[0]
            ours = {Path(near.example_id(i)).name: i for i in range(len(near))}
            for i in range(len(far)):
                assert far.example_id(i).startswith(BUCKET)
                one = data.target_of(far, i)
                two = data.target_of(near, ours[Path(far.example_id(i)).name])
                assert one.size == two.size
                for key in ("label_map", "depth", "boxes", "classes"):
                    np.testing.assert_array_equal(getattr(one, key), getattr(two, key))


def test_what_cannot_be_read_in_a_bucket_is_counted(place: Path) -> None:
    (place / "VOC/Annotations/00.xml").write_text("<annotation>")
    source = data.open_source(f"voc:{BUCKET}/VOC", split="whole")
    assert len(source) == 11
    assert "1 with XML that cannot be read" in account(source).why_left_out()
    (place / "insects/labels/train/00.txt").write_text("1 2 3")
    with pytest.raises(UserError, match=r"labels/train/00.txt: line 1 has 3 numbers"):
        data.open_source(f"yolo:{BUCKET}/insects")


def test_coco_in_a_bucket(place: Path) -> None:
    name = "coco:{0}/coco/instances.json?images={0}/coco/images"
    near, far = (data.open_source(name.format(root), split="whole") for root in (place, BUCKET))
    ours = {Path(near.example_id(i)).name: i for i in range(len(near))}
    two = data.target_of(near, ours[Path(far.example_id(3)).name])
    np.testing.assert_array_equal(data.target_of(far, 3).masks, two.masks)
