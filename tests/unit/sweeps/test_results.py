# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from tests.unit.sweeps import synthetic
from vit_jax.cli.sweep import main
from vit_jax.cli.sweeps import status as sweep_status
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps import results
from vit_jax.sweeps.results import State
from vit_jax.sweeps.sharing import claim


def _new(run: Path) -> Path:
    run.mkdir(parents=True)
    return run


def test_the_time_of_a_run_is_that_of_all_its_processes(tmp_path: Path) -> None:
    (point,) = made = synthetic.points()[:1]
    synthetic.finish(tmp_path, point, 0.5)  # 12.5 s
    with open(point.workdir(tmp_path) / "metrics.jsonl", "a") as file:
        for step, wall in ((110, 4.0), (120, 5.0), (130, 2.0)):
            file.write(json.dumps({"step": step, "perf/wall_seconds": wall}) + "\n")
    assert results.read(tmp_path, made)[0].seconds == 12.5 + 5.0 + 2.0


def test_a_report_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    point_lib.write_manifest(tmp_path, synthetic.points())
    assert main(["vit_jax sweep", "report", str(tmp_path)]) == 2
    assert "of the 35 runs" in capsys.readouterr().err
    assert main(["vit_jax sweep", "report", str(tmp_path / "none")]) == 2
    assert "holds no manifest.jsonl" in capsys.readouterr().err


def test_status_tells_what_every_run_is_doing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = synthetic.points()[:6]
    point_lib.write_manifest(tmp_path, made)
    finished, failed, pruned, running, interrupted, _ = made
    synthetic.finish(tmp_path, finished, 0.25)
    results.mark_ended(_new(failed.workdir(tmp_path)), State.FAILED, "status 70: not finite")
    results.mark_ended(_new(pruned.workdir(tmp_path)), State.PRUNED, "worse")
    for point in (running, interrupted):
        synthetic.finish(tmp_path, point, 0.5)
        (point.workdir(tmp_path) / "finished.json").unlink()
        path = point.workdir(tmp_path) / "metrics.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with claim(tmp_path, running.run):
        assert main(["vit_jax sweep", "status", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = ["finished", "failed", "pruned", "running", "interrupted", "waiting"]
    for point, state, line in zip(made, states, lines[1:], strict=False):
        assert line.startswith(point.run)
        assert f" {state} " in line
    assert lines[1].split()[-3:] == ["100/100", "0.2500", "12s"]
    assert "status 70: not finite" in lines[2]
    assert " 50/100 " in lines[4]
    assert " on " in lines[4]  # who trains it
    assert lines[-1].startswith("6 runs: 1 waiting, 1 running, 1 interrupted, 1 finished, 1 pruned")
    told = lines[-1].rpartition("; about ")[2]
    with claim(tmp_path, running.run), claim(tmp_path, interrupted.run):
        assert main(["vit_jax sweep", "status", str(tmp_path)]) == 0
    found = results.read(tmp_path, made)
    assert [r.state for r in sweep_status.most_telling(found, 3)] == [
        "failed",
        "interrupted",
        "interrupted",
    ]
    # Two at a time take half as long.
    again = capsys.readouterr().out.splitlines()[-1].rpartition("; about ")[2]
    assert told.endswith("s to go at this pace")
    assert int(told.split("s")[0]) == pytest.approx(2 * int(again.split("s")[0]), abs=1)
