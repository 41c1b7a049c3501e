# SPDX-License-Identifier: Apache-2.0
"""Files appear complete or not at all; what is there already is kept unless it may be replaced."""

import os
from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.storage import files


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    files.write(place, "old")
    with files.replacing(place) as temporary:
        temporary.write_text("new")
        assert place.read_text() == "old"
    assert place.read_text() == "new"

    def fails() -> None:
        with files.replacing(place) as temporary:
            temporary.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (place.read_text(), os.listdir(tmp_path)) == ("new", ["x.json"])


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, fsync = [], os.fsync

    def noting(descriptor: int) -> None:
        seen.append(os.listdir(tmp_path))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    files.write(tmp_path / "x", b"1")
    assert seen == [[f".x.{os.getpid()}.tmp"]]


def test_a_fault_of_the_disk_is_one_line(tmp_path: Path) -> None:
    told = pytest.raises(UserError, match=r"^cannot write: No such file or directory; go on$")
    with told, files.refused("cannot write", "; go on"):
        files.write(tmp_path / "no" / "x", "")
    with pytest.raises(BrokenPipeError), files.refused("cannot write"):
        raise BrokenPipeError


def test_what_is_there_is_replaced_by_force_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    files.check_file(file, "--out", force=False)
    file.touch()
    with pytest.raises(UserError, match=r"^--out=.*x.csv is there already; .*force$"):
        files.check_file(file, "--out", force=False)
    files.check_file(file, "--out", force=True)
    files.check_file(Path(os.devnull), "--out", force=False)
    with pytest.raises(UserError, match="is there already"):
        files.check_file(tmp_path, "--out", force=True)
    with pytest.raises(UserError, match=r"must end in \.json"):
        files.check_file(file, "--out", force=True, suffix=".json")
    with pytest.raises(UserError, match=r"x.csv is no directory; make it first"):
        files.check_file(file / "y", "--out", force=False)


def test_a_folder_that_holds_files_is_refused(tmp_path: Path) -> None:
    for name in (".", "new", "new/below"):
        files.check_folder(tmp_path / name, "--to", force=False)
    (tmp_path / ".partial").mkdir()  # a killed process leaves it
    files.check_folder(tmp_path, "--to", force=False)
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match=r"^--to=.* holds files already; .*force"):
        files.check_folder(tmp_path, "--to", force=False)
    files.check_folder(tmp_path, "--to", force=True)
    with pytest.raises(UserError, match=r"^--to=/ has no name of its own; name a folder below it"):
        files.check_folder(Path("/"), "--to", force=True)
    with pytest.raises(UserError, match="mine is a file; name a folder"):
        files.check_folder(tmp_path / "mine", "--to", force=True)
    with pytest.raises(UserError, match="mine is no directory; name another folder"):
        files.check_folder(tmp_path / "mine" / "below", "--to", force=True)
