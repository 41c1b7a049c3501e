# SPDX-License-Identifier: Apache-2.0
"""One pass over the headers of shards, which is kept; what a key must not be is one line."""

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.shards import write_tar
from vit_jax.data.sources.sharded import tar_index
from vit_jax.data.sources.sharded.tar_index import Fields
from vit_jax.errors import DataError
from vit_jax.storage import remote

PLAIN = Fields()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def entries(path: Path, fields: Fields = PLAIN) -> list[tuple[bytes, bytes]]:
    (found,) = tar_index.index([remote.info(str(path))], fields)
    return list(zip(found.names.tolist(), found.labels.tolist(), strict=True))


MANY = {
    "d/1.jpg": b"j",
    "d/1.json": b'{"label": 7, "kind": "owl", "word": "x"}',
    "d/1.cls": b" 3\n",
    "2.PNG": b"p",
    "2.seg.png": b"s",
    "2.webp": b"w",
    "2.json": b'{"class": 4}',
    "3.jpeg": b"J",
    "3.txt": b"a caption",
    ".hidden.jpg": b"h",
    "readme": b"r",
    "4.json": b'{"label": 1}',
}


def test_images_and_labels_by_the_names_of_fields(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", MANY)
    images = [b"d/1.jpg", b"2.PNG", b"3.jpeg"]
    assert entries(path) == list(zip(images, [b"3", b"4", b""], strict=True))
    labels = {
        "label": [b"7", b"", b""],
        "kind": [b"owl", b"", b""],
        "txt": [b"", b"", b"a caption"],
    }
    for field, expected in labels.items():
        assert [label for _, label in entries(path, Fields(label=field))] == expected
    assert entries(path, Fields(image="seg.png")) == [(b"2.seg.png", b"4")]


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"1.cls": b"0", "2.json": b"{}", "a.b.jpg": b""},
            "no member is .jpg, .png, ...; there are .b.jpg, .cls, .json",
        ),
        ({"1.jpg": b"0", "1.json": b"{"}, "'1.json' is no JSON"),
        ({"1.jpg": b"0", "1.json": b"[" * 200_000}, "'1.json' is no JSON"),
        ({"1.jpg": b"0", "1.cls": b"x" * 256}, "'1.cls' holds no label, but 256 bytes"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, files: dict, message: str) -> None:
    with pytest.raises(DataError) as caught:
        entries(write_tar(tmp_path / "a.tar", files))
    assert str(caught.value).startswith(f"{tmp_path}/a.tar: {message}")


def test_a_shard_that_is_gone_is_one_line(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"x"})
    shard = remote.info(str(path))
    path.unlink()
    with pytest.raises(DataError, match=r"a\.tar: No such file or directory"):
        tar_index.index([shard], PLAIN)


def test_a_key_twice_and_a_link_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for name, kind, message in (
        ("1.jpg", tarfile.REGTYPE, "'1.jpg' is there twice: its key has two .jpg"),
        ("2.jpg", tarfile.SYMTYPE, "'2.jpg' is a link; write the file itself"),
    ):
        with tarfile.open(path, "w") as tar:
            tar.addfile(tarfile.TarInfo("1.jpg"))
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        with pytest.raises(DataError) as caught:
            entries(path)
        assert f"{path}: {message}" in str(caught.value)


def test_the_index_is_kept_beside_the_shards_and_made_anew_for_those_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        write_tar(tmp_path / f"{i}.tar", {f"{i}.jpg": b"a" * 999, f"{i}.cls": b"1"}) for i in "ab"
    ]
    read, seen = remote.read_range, []

    def reading(path: str, start: int, stop: int) -> bytes:
        seen.append(Path(path).name)
        return read(path, start, stop)

    monkeypatch.setattr(remote, "read_range", reading)

    def names() -> list[bytes]:
        seen.clear()
        found = tar_index.index([remote.info(str(path)) for path in paths], Fields())
        return tar_index.joined(found).names.tolist()

    assert names() == [b"a.jpg", b"b.jpg"]
    assert {*seen} == {"a.tar", "b.tar"}
    assert names() == [b"a.jpg", b"b.jpg"]
    assert not seen
    (kept,) = tmp_path.glob("vit_jax-index-*.npz")
    write_tar(paths[1], {"c.jpg": b"a" * 999, "c.cls": b"1"})  # of the same size
    os.utime(paths[1], ns=(1, 1))
    assert names() == [b"a.jpg", b"c.jpg"]
    assert {*seen} == {"b.tar"}
    assert capsys.readouterr().err == (
        "warning: b.tar changed after the index was made; reading headers again\n"
    )
    for damaged in (kept.read_bytes()[:-50], b""):
        kept.write_bytes(damaged)
        assert names() == [b"a.jpg", b"c.jpg"]
        assert {*seen} == {"a.tar", "b.tar"}
    # Where none can be written beside them, it lies in the cache, also where there is an old one.
    old = kept.read_bytes()
    kept.unlink()
    kept.mkdir()
    assert names() == names() == [b"a.jpg", b"c.jpg"]
    assert not seen
    assert list((tmp_path / "cache" / "vit_jax").rglob(kept.name))
    os.utime(paths[0], ns=(2, 2))
    assert names() == [b"a.jpg", b"c.jpg"]
    kept.rmdir()
    kept.write_bytes(old)
    assert names() == [b"a.jpg", b"c.jpg"]
    assert not seen
    assert not list(tmp_path.glob(".*.tmp"))


def test_what_is_remote_is_read_in_few_large_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{i}.{kind}": bytes(2000) for i in range(50) for kind in ("jpg", "npy")}
    data = write_tar(tmp_path / "a.tar", files).read_bytes()
    requests = []

    def reading(path: str, start: int, stop: int) -> bytes:
        requests.append((start, stop))
        return data[start:stop]

    monkeypatch.setattr(remote, "read_range", reading)
    shard = remote.FileInfo("https://host/a.tar", len(data), "7")
    (found,) = tar_index.index([shard], Fields())
    assert len(found.names) == 50
    assert requests == [(0, len(data))]
    np.testing.assert_array_equal(tar_index.index([shard], Fields())[0].starts, found.starts)
    assert len(requests) == 1
