# SPDX-License-Identifier: Apache-2.0
"""Config files are found by name and read as text; a wrong name suggests the run that was meant."""

from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.settings import config_files

GRID = '''"""A grid.

Runs: s24, s24_384,
xxs24
"""
raise AssertionError("imported")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "configs"
    (root / "sweeps").mkdir(parents=True)
    (root / "cait_imagenet.py").write_text(GRID)
    (root / "vit_mu_digits.py").write_text('"""Digits."""\n')
    (root / "__init__.py").write_text("")
    (root / "sweeps" / "lr.py").write_text('"""A sweep."""\n')
    monkeypatch.setattr(config_files, "FOLDER", root)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return root


def test_titles_and_runs_are_read_without_an_import(folder: Path) -> None:
    first, second = config_files.read()
    assert first == ("cait_imagenet", "A grid.", ("s24", "s24_384", "xxs24"))
    assert second == ("vit_mu_digits", "Digits.", ())
    assert config_files.read("sweeps") == [("lr", "A sweep.", ())]


@pytest.mark.parametrize(
    "name, file, argument",
    [
        ("vit_mu_digits", "vit_mu_digits.py", None),
        ("vit_mu_digits.py", "vit_mu_digits.py", None),
        ("configs/vit_mu_digits.py", "vit_mu_digits.py", None),
        ("cait_imagenet:s24", "cait_imagenet.py", "s24"),
        ("configs/cait_imagenet.py:nonsense", "cait_imagenet.py", "nonsense"),
        ("cait_s24_imagenet", "cait_imagenet.py", "s24"),
        ("cait_imagenet_s24_384", "cait_imagenet.py", "s24_384"),
        ("configs/cait_s24_imagenet.py:384", "cait_imagenet.py", "s24_384"),
    ],
)
def test_a_name_finds_its_file_from_anywhere(
    folder: Path, name: str, file: str, argument: str | None
) -> None:
    assert config_files.find(name) == (folder / file, argument)


def test_a_file_of_ones_own_comes_first(folder: Path) -> None:
    Path("vit_mu_digits").write_text("")
    assert config_files.find("vit_mu_digits:x") == (Path("vit_mu_digits"), "x")


def test_the_run_of_a_file_that_was_merged_is_suggested(folder: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'cait_imagenet:s24'\?") as refused:
        config_files.find("cait_s24")
    assert str(refused.value).startswith("unknown config file 'cait_s24'; ")


@pytest.mark.parametrize(
    "name", ["vit_nu_digits", "configs/vit_nu_digits.py", "my/vit_mu_digit.py"]
)
def test_the_nearest_name_is_suggested(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match="did you mean 'vit_mu_digits'"):
        config_files.find(name)


def test_no_name_lists_all(folder: Path) -> None:
    with pytest.raises(UserError, match="valid: cait_imagenet, vit_mu_digits"):
        config_files.find("")
