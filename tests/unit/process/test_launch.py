# SPDX-License-Identifier: Apache-2.0
"""A package that is missing, or a Python that is too old, is one line on standard error."""

import os
import sys
from pathlib import Path

import pytest

from vit_jax import errors
from vit_jax.process import launch, output

ROOT = Path(__file__).parents[3]


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_verb.py").write_text("import no_such_package.inside\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as end:
        launch.load("broken_verb")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the package 'no_such_package' is not installed; " in line


def test_the_command_that_installs_a_package_names_its_extra() -> None:
    # By what the installed metadata says; here the package is installed from a clone.
    for module, extra in {"sklearn.svm": "[train]", "tensorflow_datasets": "[train]"}.items():
        line = errors.missing(module)
        assert line.endswith(f"-m pip install -e '{ROOT}{extra}' installs it"), line
    assert f"-e '{ROOT}' installs it" in errors.missing("einops")  # of no extra


def test_a_module_of_our_own_that_is_missing_is_an_error_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_verb"):
        launch.load("vit_jax.cli.no_such_verb")


def test_main_of_a_module_is_returned() -> None:
    from vit_jax.cli import models

    assert launch.load("vit_jax.cli.models") is models.main


def test_a_reader_that_has_enough_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output.show("what it does") == 0
    assert capsys.readouterr().out == "what it does\n"
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert output.show("what it does") == 141


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
    pip = f"{sys.executable} -m pip install"
    assert errors.install("serve") == f"{pip} -e '{ROOT}[serve]'"  # a checkout
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "vit_jax" / "errors.py"))
    assert errors.install("serve") == f"{pip} 'vitjax[serve]'"  # a wheel
    assert errors.install() == f"{pip} 'vitjax'"
