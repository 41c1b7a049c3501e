# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.data.sources.listing import NAMELESS, list_all
from vit_jax.data.sources.remote_folders import RemoteFolder
from vit_jax.errors import UserError
from vit_jax.storage import remote


def test_one_listing_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg", "val/cat/3.jpg", "readme.txt"]
    listed = [remote.FileInfo(f"gs://b/photos/{name}", 1, "") for name in names]
    asked: list[str] = []
    monkeypatch.setattr(remote, "find", lambda pattern: asked.append(pattern) or listed)
    root = RemoteFolder.open("gs://b/photos/")
    assert (root.folders(), root.files()) == (["train", "val"], ["readme.txt"])
    assert (root / "train" / "cat").files() == ["1.jpg", "2.jpg"]
    assert (root / "train/dog").is_dir()
    assert not (root / "test").is_dir()
    assert (root / "test").folders() == []
    assert str(root / "" / "val") == "gs://b/photos/val"
    assert asked == ["gs://b/photos/**"]


def test_a_file_called_as_a_folder_hides_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["cat", "cat/1.jpg", "dog/2.jpg"]  # some tools write an empty object for a folder
    listed = [remote.FileInfo(f"gs://b/{name}", 0, "") for name in names]
    monkeypatch.setattr(remote, "find", lambda _: listed)
    assert RemoteFolder.open("gs://b").folders() == ["cat", "dog"]


def test_a_name_with_an_empty_part_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [remote.FileInfo(f"gs://b/{name}", 0, "") for name in ("cat//x.png", "cat/1.png")]
    monkeypatch.setattr(remote, "find", lambda _: listed)
    found = list_all(RemoteFolder.open("gs://b"))
    assert (found.images, found.folders) == (["cat/1.png"], ["cat"])
    assert found.others == [(NAMELESS, "cat//x.png")]


def test_a_server_lists_nothing() -> None:
    with pytest.raises(UserError, match=r"a server lists nothing; .* csv:https://"):
        RemoteFolder.open("https://host/photos")
