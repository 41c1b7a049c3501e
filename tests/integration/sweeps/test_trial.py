# SPDX-License-Identifier: Apache-2.0
"""What becomes of a point as its process ends in each way: a stand-in program, real signals."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.unit.sweeps import synthetic
from vit_jax.sweeps import results, trial
from vit_jax.sweeps.queue import claim, holder
from vit_jax.sweeps.results import State

POINT = synthetic.points()[0]
# What it does at its first, second and third start; `run` is its directory.
PROGRAM = """
import os, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[-1].removeprefix("--workdir="))
with open(run / "starts", "a") as file: file.write("x")
start = len((run / "starts").read_text())
def line(text):
    with open(run / "metrics.jsonl", "a") as file: file.write(text + "\\n")
def done():
    (run / "finished.json").write_text('{"step": 100}'); sys.exit(0)
"""


def train(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    *,
    report: trial.Report | None = None,
    stopping: trial.Stopping | None = None,
) -> tuple[State, int, list[str]]:
    """Train a point whose program is `body`; returns the state, the starts and what was said."""
    monkeypatch.setattr(trial, "_MAIN", PROGRAM + body)
    said: list[str] = []
    with claim(place, POINT.run) as descriptor:
        assert descriptor is not None
        state = trial.train(
            POINT,
            place,
            descriptor=descriptor,
            environment={"MINE": "1"},
            stopping=stopping or trial.Stopping(),
            report=report,
            log=said.append,
        )
    return state, len((POINT.workdir(place) / "starts").read_text()), said


def told(place: Path) -> str | None:
    how = results.ended(POINT.workdir(place))
    return None if how is None else how.note


def test_a_run_that_ends_well_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "print(sys.argv[1:], os.environ['MINE'], os.environ['JAX_NUM_PROCESSES']); done()"
    assert train(tmp_path, monkeypatch, body) == (State.FINISHED, 1, [])
    log = (POINT.workdir(tmp_path) / "output.txt").read_text()
    assert "'--config.data.train_split=train[:1000]'" in log
    assert log.endswith(" 1 1\n")
    assert told(tmp_path) is None


def test_a_run_that_fails_is_not_started_again_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('error: loss is not finite; lower optim.lr'); print('bye'); sys.exit(70)"
    assert train(tmp_path, monkeypatch, body) == (State.FAILED, 1, [])
    assert told(tmp_path) == "status 70: loss is not finite; lower optim.lr"
    # The next sweep forgets it, and tells of what its own log says.
    assert train(tmp_path, monkeypatch, "sys.exit(2)")[:2] == (State.FAILED, 2)
    assert told(tmp_path) == "status 2: no output"
    assert train(tmp_path, monkeypatch, "done()")[0] is State.FINISHED
    assert told(tmp_path) is None


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(75)", "os._exit(71)"]
)
def test_a_run_that_is_killed_stopped_or_hangs_is_continued(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, starts, said = train(tmp_path, monkeypatch, f"if start == 3: done()\n{end}")
    assert (state, starts, len(said)) == (State.FINISHED, 3, 2)
    assert all(line.endswith("; it is continued") for line in said)


def test_a_run_that_is_killed_again_and_again_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "os.kill(os.getpid(), signal.SIGKILL)"
    state, starts, _ = train(tmp_path, monkeypatch, body)
    assert (state, starts) == (State.FAILED, 3)
    assert told(tmp_path) == "killed by SIGKILL (too little memory?)"


def test_a_run_that_is_given_up_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float]] = []

    def report(step: int, value: float) -> bool:
        seen.append((step, value))
        return value > 2

    body = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        'line(\'{"step": 10, "val/loss": 1.5}\'); time.sleep(0.5)\n'
        'line(\'{"step": 20, "val/loss": 2.5}\'); time.sleep(60)'
    )
    assert train(tmp_path, monkeypatch, body, report=report)[:2] == (State.PRUNED, 1)
    assert seen == [(10, 1.5), (20, 2.5)]
    assert results.ended(POINT.workdir(tmp_path)).state is State.PRUNED


@pytest.mark.usefixtures("ctrl_c")
def test_a_signal_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: (line('{\"step\": 1}'), sys.exit(75)))\n"
        "(run / 'ready').touch(); time.sleep(60)"
    )
    ready = POINT.workdir(tmp_path) / "ready"

    def interrupt() -> None:
        while not ready.exists():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with trial.Stopping() as stopping:
        thread.start()
        state = train(tmp_path, monkeypatch, body, stopping=stopping)[0]
    thread.join()
    assert (state, stopping.requested) == (State.INTERRUPTED, True)
    assert (POINT.workdir(tmp_path) / "metrics.jsonl").exists()  # it has saved
    assert told(tmp_path) is None


def test_a_run_holds_the_claim_when_its_worker_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_MAIN", "import time; time.sleep(60)")
    run = POINT.workdir(tmp_path)
    run.mkdir(parents=True)
    with claim(tmp_path, POINT.run) as descriptor:
        process = trial._start(POINT, run, descriptor, {})
    try:
        assert holder(tmp_path, POINT.run) is not None
    finally:
        process.kill()
        process.wait()
    assert holder(tmp_path, POINT.run) is None
