# SPDX-License-Identifier: Apache-2.0
"""A package that is missing, or a Python that is too old, is one line on standard error."""

import sys
from pathlib import Path

import pytest

from vit_jax.process import launch


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_verb.py").write_text("import no_such_package.inside\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as end:
        launch.load("broken_verb")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no package 'no_such_package'" in line


def test_a_module_of_our_own_that_is_missing_is_an_error_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_verb"):
        launch.load("vit_jax.cli.no_such_verb")


def test_main_of_a_module_is_returned() -> None:
    from vit_jax.cli import models

    assert launch.load("vit_jax.cli.models") is models.main


def test_an_old_python_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch.signals, "end_at_once", lambda: None)
    launch.begin()
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit):
        launch.begin()
    assert "is Python 3.10.4, and this needs Python 3.11 or newer" in capsys.readouterr().err


def test_an_extra_is_installed_where_the_package_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch.install("serve") == "pip install -e '.[serve]'"  # a checkout
    assert launch.install() == "pip install -e ."
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "vit_jax" / "process" / "launch.py"))
    assert launch.install("serve") == "pip install 'vitjax[serve]'"  # a wheel
    assert launch.install() == "pip install vitjax"
