# SPDX-License-Identifier: Apache-2.0
"""`configs` lists the runs in groups, a wrong file suggests one, and a config is shown whole."""

import ast
import re
from pathlib import Path

import pytest

from tests.unit.test_configs import CONFIGS
from vit_jax.cli.summary import main as summary


def test_files_import_nothing_that_a_copy_would_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in CONFIGS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                known = {"vit_jax", "dataclasses", "math", "collections", "typing", "optuna"}
                assert name.split(".")[0] in known, f"{path} imports {name}"
    copy = tmp_path / "mine.py"
    copy.write_text((CONFIGS / "tenth_digits.py").read_text())
    monkeypatch.chdir(tmp_path)
    assert summary(["summary", "--config=mine.py:distilled_hard"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^objective +DistillConfig$", out, re.MULTILINE)
    assert "training step of one image" in out
