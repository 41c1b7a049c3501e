# SPDX-License-Identifier: Apache-2.0
"""--profile writes a trace that opens and holds the steps asked for; a run's time is told whole."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import pytest

from tests.integration.train.test_resume import SMALL
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.evals import Classify
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.loop import Result, fit
from vit_jax.train.report import profile
from vit_jax.train.report.goodput import Phase
from vit_jax.train.report.profile import Window
from vit_jax.train.report.writers import read_jsonl

ARGS = (
    *SMALL,
    "--config.mesh.data=1",
    "--config.optim.name=sgd",
    "--config.optim.warmup=2 steps",
    "--config.duration=12 steps",
    "--config.checkpoint.every=5 steps",
    "--config.log.every=4 steps",
    "--config.log.tensorboard=false",
    "--config.evals.val.every=6 steps",
)


def config(*args: str) -> Config:
    argv = ["main.py", *ARGS, *args]
    return cli_flags.read_config(argv)


def steps_in(workdir: Path, window: Window) -> list[int]:
    """List the numbers of the steps in the one trace of a window."""
    (file,) = window.folder(workdir).glob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [e for plane in planes for line in plane.lines for e in line.events]
    return sorted(dict(event.stats)["step_num"] for event in events if event.name == "train")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, Mapping[str, float]]:
    """Train twelve steps with a profile of three; with it what was measured from outside."""
    place = tmp_path_factory.mktemp("traced") / "run"
    took = {"eval": 0.0}
    run = Classify.run

    def timed(*args, **kwargs):
        start = time.monotonic()
        try:
            return run(*args, **kwargs)
        finally:
            took["eval"] += time.monotonic() - start

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classify, "run", timed)
        start = time.monotonic()
        result = fit(config(), place, window=Window(first=6, count=3))
        took["wall"] = time.monotonic() - start
    return place, result, took


def test_the_trace_opens_and_holds_the_steps(traced) -> None:
    place, result, _ = traced
    assert result.status == 0
    assert steps_in(place, Window(6, 3)) == [6, 7, 8]
    # Where TensorBoard and XProf look: nothing else is left beside it.
    assert [p.name for p in (place / "profile").iterdir()] == ["plugins"]
    names = {p.name.split(".")[0] for p in Window(6, 3).folder(place).iterdir()}
    assert names == {"process0"}


def test_every_second_of_the_run_is_accounted_for(traced) -> None:
    place, _, took = traced
    rows = [row for row in read_jsonl(place / "metrics.jsonl") if "perf/wall_seconds" in row]
    assert [row["step"] for row in rows] == [4, 8, 12, 12]
    assert all(0 <= row["perf/data_wait"] <= 1 for row in rows[:-1])
    for row in rows:
        assert sum(row[f"perf/share/{stage}"] for stage in Phase) == pytest.approx(1)
    seconds = {stage: rows[-1]["perf/wall_seconds"] * rows[-1][f"perf/share/{stage}"]
               for stage in Phase}  # fmt: skip
    # One clock inside the other: the evaluators' calls lie in the evaluation phase, the phases in
    # the call of fit.
    assert took["eval"] <= seconds[Phase.EVAL] < sum(seconds.values()) <= took["wall"]
    assert all(seconds[stage] > 0 for stage in Phase)


@pytest.mark.parametrize(
    "text, told",
    [
        ("5", "must be two whole numbers STEP,COUNT, such as --profile=100,5"),
        ("5,x", "must be two whole numbers"),
        ("1,2,3", "must be two whole numbers"),
        ("", "must be two whole numbers"),
        ("0,5", "STEP and COUNT must be at least 1"),
        ("5,0", "STEP and COUNT must be at least 1"),
        ("10,4", "--profile=10,4 ends with step 13; the run ends with 12"),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    text: str, told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["main.py", *ARGS, f"--workdir={tmp_path / 'w'}", f"--profile={text}"]
    assert main(argv) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith(f"error: --profile={text}")
    assert told in line
    assert not (tmp_path / "w").exists()


def test_a_window_before_the_resumed_step_is_refused_unless_it_is_there(traced) -> None:
    place, *_ = traced
    assert profile.check(None, place, start=7, total=12) is None
    assert profile.check(Window(8, 2), place, start=7, total=12) == Window(8, 2)
    with pytest.raises(UserError, match=r"^--profile=7,2 begins before step 8, where .* continues"):
        profile.check(Window(7, 2), place, start=7, total=12)
    # A run that was stopped inside its window, or after it, goes on by the same command.
    assert profile.check(Window(6, 3), place, start=7, total=12) is None


def test_a_stop_inside_the_window_closes_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    window = Window(2, 9)
    add = profile.Profiler.step

    def stop_at_4(self, number: int):
        if number == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return add(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile.Profiler, "step", stop_at_4)
        assert fit(config(), place, window=window).status == INTERRUPTED
    said = capsys.readouterr().out
    assert f"profile of steps 2 to 4: tensorboard --logdir={place / 'profile'}\n" in said
    assert steps_in(place, window) == [2, 3, 4]
    with pytest.raises(UserError, match="begins before step 5"):
        fit(config(), place, window=Window(4, 2))
    # The same command goes on, and traces nothing twice.
    assert fit(config(), place, window=window).status == 0
    assert "profile of" not in capsys.readouterr().out
    assert steps_in(place, window) == [2, 3, 4]
