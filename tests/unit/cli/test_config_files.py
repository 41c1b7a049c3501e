# SPDX-License-Identifier: Apache-2.0
"""Config files are read as text, and a wrong name suggests the run that was meant."""

from pathlib import Path

import pytest

from vit_jax.cli import config_files

GRID = '''"""A grid.

Runs: s24, s24_384,
xxs24
"""
raise AssertionError("imported")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = Path("configs")
    root.mkdir()
    (root / "cait_imagenet.py").write_text(GRID)
    (root / "vit_mu_digits.py").write_text('"""Digits."""\n')
    (root / "__init__.py").write_text("")
    return root


def test_titles_and_runs_are_read_without_an_import(folder: Path) -> None:
    first, second = config_files.read(folder)
    assert first == ("configs/cait_imagenet.py", "A grid.", ("s24", "s24_384", "xxs24"))
    assert second == ("configs/vit_mu_digits.py", "Digits.", ())


def test_the_run_of_a_file_that_was_merged_is_suggested(folder: Path) -> None:
    error = str(config_files.unknown("configs/cait_s24_imagenet.py"))
    assert error.endswith("did you mean 'configs/cait_imagenet.py:s24'?")


def test_the_nearest_name_is_suggested(folder: Path) -> None:
    error = str(config_files.unknown("configs/vit_nu_digits.py"))
    assert "did you mean 'configs/vit_mu_digits.py'" in error


def test_no_folder_has_no_files() -> None:
    assert config_files.names(Path("no/such/folder")) == []
