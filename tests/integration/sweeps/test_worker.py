# SPDX-License-Identifier: Apache-2.0
"""Real sweeps of real runs, and real signals to their processes."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.unit.sweeps import files
from vit_jax.checkpoints.config import steps_in
from vit_jax.cli.sweep import main
from vit_jax.sweeps import point, results
from vit_jax.sweeps.results import State
from vit_jax.train.report.writers import read_jsonl


def read(place: Path) -> list[results.Outcome]:
    return results.read(place, point.read_manifest(place))


def run_here(capfd: pytest.CaptureFixture[str], *args: object, status: int = 0) -> str:
    """Call `vit_jax sweep run` in this process; returns what it printed."""
    capfd.readouterr()
    found = main(["vit_jax sweep", "run", *map(str, args)])
    out, err = capfd.readouterr()
    assert found == status, out + err
    return out


def runs_of(worker: int) -> list[int]:
    """List the processes that a worker has started."""
    return [int(p) for p in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()] + [
        int(child)
        for task in Path(f"/proc/{worker}/task").iterdir()
        if task.name != str(worker)
        for child in (task / "children").read_text().split()
    ]


def steps_logged(place: Path, run: str) -> list[int]:
    rows = read_jsonl(place / "runs" / run / "metrics.jsonl")
    return [row["step"] for row in rows if "train/loss" in row]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes as Linux does")
def test_a_killed_worker_loses_nothing_and_no_point_is_trained_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = files.grid_of(tmp_path / "lrs.py", (0.001, 0.002), steps=700)
    place = tmp_path / "out"
    victim = files.start(file, f"--out={place}")
    try:
        # It is killed as a machine dies, with the run that it has started, once that has saved.
        files.wait_until(lambda: any(map(steps_in, place.glob("runs/*/checkpoints"))))
        lost = (*runs_of(victim.pid), victim.pid)
        for process in lost:
            os.kill(process, signal.SIGSTOP)  # before the run ends by itself
        survivor = files.start(file, f"--out={place}")
        for process in lost:
            os.kill(process, signal.SIGKILL)
        victim.wait()
        out = files.finish(survivor)
    finally:
        victim.kill()
    assert "2 runs: 2 finished" in out
    found = read(place)
    assert [result.state for result in found] == [State.FINISHED] * 2
    logs = [(place / "runs" / r.point.run / "output.txt").read_text() for r in found]
    starts = [log.count("learning curve: ") for log in logs]
    assert starts == [1, 1]
    assert sum("continuing" in log for log in logs) == 1  # the victim's, from where it was
    for result in found:
        assert steps_logged(place, result.point.run) == list(range(50, 701, 50))
    # And what has finished is not done again.
    assert "finished" in run_here(capfd, place)
    assert [(place / "runs" / r.point.run / "output.txt").read_text() for r in found] == logs


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_saves_and_the_same_command_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # of the runs
    file = files.grid_of(tmp_path / "lrs.py", (0.001, 0.002), steps=1200)
    place = tmp_path / "out"
    first = files.start(file, f"--out={place}", "--workers=2")
    files.wait_until(lambda: len(list(place.glob("runs/*/metrics.jsonl"))) == 2)
    first.send_signal(signal.SIGTERM)
    out = files.finish(first, status=75)
    assert "2 runs: 2 interrupted" in out
    assert "stopped; the same command continues" in out
    at = {result.point.run: result.step for result in read(place)}
    assert all(0 < step < 1200 for step in at.values())
    run_here(capfd, place, "--index=1")
    one, other = read(place)
    assert (one.state, other.state) == (State.INTERRUPTED, State.FINISHED)
    log = (other.point.workdir(place) / "output.txt").read_text()
    assert f"saved step {at[other.point.run]:,}" in log
    assert (
        f"continuing {other.point.workdir(place)} at step {at[other.point.run]:,} of 1,200" in log
    )


def test_a_run_that_fails_is_told_and_does_not_stop_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # of the runs
    # A folder of images that is not there: found by the run, as a duration in steps needs no data.
    body = (
        "def sweep():\n    small = {**SMALL, 'duration': '10 steps', 'optim.warmup': '2 steps'}\n"
        f"    yield {{**small, 'data.name': 'folder:{tmp_path}/none'}}\n    yield small\n"
    )
    place = tmp_path / "out"
    out = run_here(capfd, files.write(tmp_path / "two.py", body), f"--out={place}", status=1)
    assert "2 runs: 1 finished, 1 failed" in out
    assert re.search(r"failed: name=folder.*status 2: .*none.* see .*output\.txt", out)
    failed, finished = read(place)
    assert (failed.state, finished.state) == (State.FAILED, State.FINISHED)
    assert failed.note.startswith("status 2: ")
    rows = read_jsonl(finished.point.workdir(place) / "metrics.jsonl")
    assert [finished.value] == [row["val/loss"] for row in rows if "val/loss" in row]


@pytest.mark.slow
def test_a_search_prunes_and_makes_as_many_trials_as_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # of the runs
    body = (
        "import optuna\nTRIALS = 3\nSAMPLER = optuna.samplers.RandomSampler(seed=0)\n"
        # Learning nothing, the loss of ten classes is log(10) = 2.303.
        "PRUNER = optuna.pruners.ThresholdPruner(upper=2.2, n_warmup_steps=300)\n"
        "def search(trial):\n"
        "    lr = (1e-9, 4e-3, 1e-9)[trial.number]\n"
        "    noise = trial.suggest_float('optim.weight_decay', 1e-4, 1e-3, log=True)\n"
        "    return {**SMALL, 'duration': '900 steps', 'evals.val.every': '200 steps',\n"
        "            'log.every': '100 steps', 'checkpoint.every': '500 steps',\n"
        "            'optim.weight_decay': noise, 'optim.lr': lr}\n"
    )
    place = tmp_path / "out"
    file = files.write(tmp_path / "search.py", body)
    out = run_here(capfd, file, f"--out={place}", "--workers=2")
    assert "3 runs: 1 finished, 2 pruned" in out
    found = {result.point.overrides["optim.lr"]: result for result in read(place)}
    names = {result.point.name for result in found.values()}
    assert all(re.fullmatch(r"weight_decay=\S+", name) for name in names)
    assert found[4e-3].value < 2.2
    assert found[1e-9].state is State.PRUNED
    assert 300 <= found[1e-9].step < 900
    assert "3 runs: 1 finished, 2 pruned" in run_here(capfd, file, f"--out={place}")


def test_plan_prices_each_run_and_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = files.grid_of(tmp_path / "lrs.py", (0.001, 0.002))
    command = ["vit_jax sweep", "plan", str(file), "--device=1e9", "--price=3.6", "--num_devices=2"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["name"] for line in lines] == ["lr=0.001", "lr=0.002"]
    assert [line["examples"] for line in lines] == [320, 320]
    assert lines[0]["tokens"] == 320 * 16
    assert lines[0]["seconds"] == pytest.approx([lines[0]["flops"] / 2e9] * 2)
    hours = 2 * sum(line["seconds"][0] for line in lines) / 3600
    assert err.startswith("2 runs, ")
    assert f"2 x 1e+09 FLOP/s at 1e+09 FLOP/s each: {hours:.3g} device-hours" in err
    assert f"{3.6 * hours:,.2f} at 3.6 an hour" in err
    assert main(["vit_jax sweep", "plan", str(file), "--device=v5e"]) == 0
    out, err = capsys.readouterr()
    times = [json.loads(line)["seconds"] for line in out.splitlines()]
    least, most = (sum(time) / 3600 for time in zip(*times, strict=True))
    assert f"at 5.5e+09 to 9.9e+09 FLOP/s each: {least:.3g} to {most:.3g} device-hours" in err
    assert not (tmp_path / "out").exists()


def test_overrides_of_the_command_line_are_every_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = files.grid_of(tmp_path / "lrs.py", (0.001, 0.002))
    assert main(["vit_jax sweep", "plan", str(file), "--config.model.dim=32"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["overrides"]["model.dim"] for line in lines] == ["32", "32"]
    assert [line["name"] for line in lines] == ["lr=0.001", "lr=0.002"]
