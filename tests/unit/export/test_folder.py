# SPDX-License-Identifier: Apache-2.0
"""An export's folder is complete or not there, and other files in it stay."""

from pathlib import Path

import pytest

from tests.refusals import refused_by
from vit_jax.export import folder as export_folder
from vit_jax.export.folder import CARD, CLASSES, MARK, WEIGHTS
from vit_jax.storage import files

EXPORT = {WEIGHTS["onnx"]: b"1", CLASSES: b"[]", MARK: b'{"vit_jax": "1"}'}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_new_folder_has_every_file(tmp_path: Path) -> None:
    export_folder.write(tmp_path / "a" / "b", EXPORT)
    assert _names(tmp_path / "a" / "b") == set(EXPORT)
    assert _names(tmp_path / "a") == {"b"}


def test_another_export_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    export_folder.write(folder, EXPORT)
    (folder / "notes.txt").write_text("mine")
    after = {WEIGHTS["timm"]: b"2", MARK: b'{"vit_jax": "2"}'}
    export_folder.write(folder, after, force=True)
    assert _names(folder) == {*after, "notes.txt"}


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / CARD).write_text("my own page")
    with refused_by("storage.files.check_folder", "--to"):
        export_folder.write(tmp_path, EXPORT)
    export_folder.write(tmp_path, EXPORT, force=True)
    assert (tmp_path / CARD).read_text() == "my own page"


def test_an_export_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    with refused_by("storage.files.refused"):
        export_folder.write(tmp_path / "x", EXPORT)
    assert not _names(tmp_path)
