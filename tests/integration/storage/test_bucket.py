# SPDX-License-Identifier: Apache-2.0
"""A folder of an emulated bucket, by Google's own driver."""

import threading
from pathlib import Path

import pytest

from tests.bucket import Bucket
from tests.refusals import refused_by
from vit_jax.inference.trained import reference
from vit_jax.storage.bucket import Folder, address
from vit_jax.storage.remote import RemoteError


def test_a_path_has_lost_one_slash_of_an_address() -> None:
    assert address(Path("gs://bucket/run/")) == address("gs://bucket/run") == "gs://bucket/run"
    assert address(Path("s3://bucket/run")) == "s3://bucket/run"
    assert reference("gs://bucket/run@best") == "ckpt:gs://bucket/run@best"
    assert reference("gs://bucket/b16.npz") == "npz:gs://bucket/b16.npz"
    assert address("runs/gs") == address("npz:/a/b.npz") == address("/gs:/x") == ""


def test_files_go_there_and_come_back(bucket: Bucket, tmp_path: Path) -> None:
    folder = Folder("gs://bucket/folder/there")
    assert folder.names() == {}
    (tmp_path / "a").write_bytes(b"a" * 10)
    folder.send([(tmp_path / "a", "x/a"), (tmp_path / "a", "x/y/b")])
    folder.write("c", b"c")
    bucket.put("bucket/folder/there2/d", b"")  # begins with the folder's name
    assert folder.names() == {"c": 1, "x/a": 10, "x/y/b": 10}
    assert folder.names("x/y") == {"x/y/b": 10}
    folder.fetch([("x/y/b", tmp_path / "new" / "b")])
    assert (tmp_path / "new" / "b").read_bytes() == b"a" * 10
    folder.remove(["x/a", "x/a", "x/y/b"])
    assert folder.names() == {"c": 1}
    with pytest.raises(FileNotFoundError):
        folder.send([(tmp_path / "gone", "gone")])
    with refused_by("storage.remote.trying", kind=RemoteError) as caught:
        folder.read("gone")
    assert "gs://bucket/folder/there/gone" in str(caught.value)


def test_a_process_ends_though_requests_have_no_answer(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, threads = Folder("gs://bucket/daemons"), []

    def request(*_: object) -> None:
        threads.append(threading.current_thread())
        raise PermissionError("Forbidden")

    monkeypatch.setattr(folder._driver, "put_file", request)
    (tmp_path / "a").write_bytes(b"a")
    with refused_by("storage.remote.trying", kind=RemoteError):
        folder.send([(tmp_path / "a", str(number)) for number in range(100)])
    assert len(threads) <= 16  # nothing is begun after the first error
    assert all(thread.daemon for thread in threads)


def test_one_alone_creates_an_object(bucket: Bucket) -> None:
    folder = Folder("gs://bucket/created")
    assert folder.create("lock", b"one")
    assert not folder.create("lock", b"two")
    assert folder.create("lock", b"one")  # by a try whose answer was lost
    assert bucket.get("bucket/created/lock") == b"one"
