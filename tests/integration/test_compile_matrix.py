# SPDX-License-Identifier: Apache-2.0
"""The matrix of compiles: its rows, one process a row, and a file that goes on where it stopped."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compile as matrix
from vit_jax import models

ROW, OTHER = matrix.ROWS[:2]


def fake(calls: list[str], **result: Any) -> Any:
    def run(row: str, seconds: float) -> dict[str, Any]:
        calls.append(row)
        return {"compiled": True, "compile_s": 1.0, "plan": 4, "estimate": 3, "ratio": 0.75}

    return run


def test_every_family_is_in_it() -> None:
    families = {type(models.variant(name)) for name in matrix.MODELS}
    assert families == {type(models.variant(name)) for name in models.VARIANTS}
    assert len(matrix.ROWS) == len(matrix.MODELS) * len(matrix.HARDWARE)


def test_a_row_is_written_at_once_and_then_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(matrix, "_in_process", fake(calls))
    out = tmp_path / "compile.json"
    command = [f"--out={out}", "--only", ROW]
    matrix.main(command)
    matrix.main([*command, "--only", OTHER])
    assert calls == [ROW, OTHER]
    rows = json.loads(out.read_text())["rows"]
    assert rows[ROW]["mesh"] == [32, 8, 1]
    assert (rows[ROW]["model"], rows[ROW]["images"], rows[ROW]["plan"]) == ("vit_h14", 16, 4)
    matrix.main([*command, "--again"])
    assert calls == [ROW, OTHER, ROW]


def test_other_compilers_start_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(matrix, "_in_process", fake(calls))
    out = tmp_path / "compile.json"
    matrix.main([f"--out={out}", "--only", ROW])
    monkeypatch.setattr(matrix, "versions", lambda: {"jax": "none"})
    matrix.main([f"--out={out}", "--only", OTHER])
    content = json.loads(out.read_text())
    assert (list(content["rows"]), content["versions"]) == ([OTHER], {"jax": "none"})


def test_plans_of_vits_are_as_estimated() -> None:
    rows = [row for row in matrix.read()["rows"].values() if row["model"].startswith("vit_")]
    assert {row["hardware"] for row in rows} == set(matrix.HARDWARE)
    for row in rows:
        assert row["estimate"] == pytest.approx(row["plan"], rel=0.15), row["model"]


def test_a_row_that_takes_too_long_says_so() -> None:
    result = matrix._in_process(ROW, 0.1)
    assert result == {"compiled": False, "reason": "no program within 0.1 s"}


def test_a_row_that_fails_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_row(name: str, hardware: str) -> dict[str, Any]:
        raise RuntimeError(f"{hardware} is no good\nand a page more")

    monkeypatch.setattr(matrix, "compile_row", compile_row)
    with pytest.raises(SystemExit) as left:
        matrix.main(["--child", ROW])
    assert left.value.code == "RuntimeError: v5e:16x16 is no good"
