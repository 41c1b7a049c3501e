# SPDX-License-Identifier: Apache-2.0
"""Real sweeps of real runs, and real signals to their processes."""

import concurrent.futures
import contextlib
import re
import time
from pathlib import Path

import pytest

from tests.unit.sweeps import files, synthetic
from vit_jax.cli.sweep import main
from vit_jax.cli.sweeps import run
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.sweeps import results
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.queue import claim
from vit_jax.sweeps.results import State
from vit_jax.sweeps.trial import Stopping
from vit_jax.sweeps.worker import Worker

MISTAKES = {
    "no_such.py": (None, [], "unknown sweep file"),
    "syntax.py": ("def sweep(:", [], "cannot be read: SyntaxError"),
    "none.py": ("", [], "needs either sweep.* or search"),
    "empty.py": ("def sweep():\n    return []\n", [], r"sweep\(\) yields no overrides"),
    "raises.py": ("def sweep():\n    return 1 / 0\n", [], r"sweep\(\): ZeroDivisionError"),
    "typo.py": (
        "def sweep():\n    yield {'optim.lrr': 1}\n",
        [],
        r"point lrr=1: unknown key --config.optim.lrr; did you mean --config.optim.lr\?",
    ),
    "wrong.py": (
        "def sweep():\n    yield {'optim.lr': 'fast'}\n",
        [],
        "optim.lr.*must be a number",
    ),
    "warmup.py": (
        "def sweep():\n    yield {'duration': '9 steps'}\n",
        [],
        "optim.warmup .101 steps. .*longer than the run .9 steps.*add .*optim.warmup=5%",
    ),
    "constant.py": ("TRIAL = 3\ndef sweep():\n    yield {}\n", [], "TRIAL means nothing.*TRIALS"),
    "trials.py": ("def search(trial):\n    return {}\n", [], "lacks TRIALS"),
    "device.py": ("def sweep():\n    yield {}\n", ["--device=v7"], "unknown device 'v7'"),
    "count.py": ("def sweep():\n    yield {}\n", ["--num_devices=0"], "num_devices=0 must be"),
    "extra.py": (
        "def sweep():\n    yield {}\n",
        ["--confg.seed=1"],
        r"unknown flag '--confg.seed'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body, flags, told = MISTAKES[name]
    if body is not None:
        files.write(tmp_path / name, body)
    assert main(["vit_jax sweep", "plan", str(tmp_path / name), *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"error: .*{told}.*\n", err), err


def test_a_wrong_metric_is_named_with_those_that_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = files.write(tmp_path / "a.py", "def sweep():\n    yield SMALL\n", metric="val/lose")
    assert main(["vit_jax sweep", "plan", str(file)]) == 2
    assert "unknown METRIC 'val/lose'; did you mean 'val/loss'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, told",
    [
        ([], r"where to\? add --out=DIR"),
        (["--out=OUT", "--workers=0"], "--workers=0 must be at least 1"),
        (["--out=OUT", "--index=1"], "--index=1: the manifest has lines 0 to 0"),
        (["--out=hdfs://host/x"], "no path of a file system"),
    ],
)
def test_a_mistake_of_run_is_one_line(
    flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = files.write(
        tmp_path / "a.py", "def sweep():\n    yield {**SMALL, 'duration': '5 steps'}\n"
    )
    flags = [flag.replace("OUT", str(tmp_path / "out")) for flag in flags]
    assert main(["vit_jax sweep", "run", str(file), *flags]) == 2
    assert re.fullmatch(rf"error: .*{told}.*\n", capsys.readouterr().err)


def test_a_point_that_another_worker_trains_is_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files.write(
        tmp_path / "a.py", "def sweep():\n    yield {**SMALL, 'duration': '5 steps'}\n"
    )
    monkeypatch.setattr(run, "claim", lambda *_: contextlib.nullcontext(None))
    words = ["vit_jax sweep", "run", str(file), f"--out={tmp_path / 'out'}", "--index=0"]
    assert main(words) == INTERRUPTED
    assert "is being trained by another worker; the same command" in capsys.readouterr().err


def test_workers_train_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that fails, which is not tried again, and one that is interrupted, which is."""
    made = synthetic.points()[:5]
    synthetic.finish(tmp_path, made[0], 0.5)
    trained: list[str] = []
    held = dict.fromkeys((point.run for point in made), 0)

    def train(point: Point, place: Path, **_: object) -> State:
        held[point.run] += 1
        assert held[point.run] == 1, "two workers train one point"
        trained.append(point.run)
        time.sleep(0.05)
        held[point.run] -= 1
        if point is made[1] and trained.count(point.run) == 1:
            return State.INTERRUPTED
        if point is made[2]:
            point.workdir(place).mkdir(parents=True)
            results.mark_ended(point.workdir(place), State.FAILED, "why")
            return State.FAILED
        synthetic.finish(place, point, 0.5)
        return State.FINISHED

    monkeypatch.setattr("vit_jax.sweeps.worker.train", train)
    workers = [Worker(tmp_path, Stopping(), 0.0, {}, lambda _: None) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda worker: worker.run_grid(made), workers))
    once = [point.run for point in made[1:]]
    assert sorted(trained) == sorted([*once, made[1].run])


def test_what_another_worker_took_first_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = synthetic.points()[:3]
    trained: list[str] = []

    def train(point: Point, place: Path, **_: object) -> State:
        trained.append(point.run)
        synthetic.finish(place, point, 0.5)
        return State.FINISHED

    monkeypatch.setattr("vit_jax.sweeps.worker.train", train)
    monkeypatch.setattr(Worker, "is_free", lambda *_: True)  # as it was a moment before
    synthetic.finish(tmp_path, made[0], 0.5)
    with claim(tmp_path, made[1].run):
        Worker(tmp_path, Stopping(), 0.0, {}, lambda _: None).run_grid(made)
    assert trained == [made[2].run]
