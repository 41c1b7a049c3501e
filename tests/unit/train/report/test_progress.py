# SPDX-License-Identifier: Apache-2.0

import jax
import pytest

from vit_jax.settings.durations import format_duration
from vit_jax.train.report.progress import Pace, Progress, format_scalars

SCALARS = {
    "train/loss": 0.8123,
    "train/top1": 0.7123,
    "train/lr": 8.7e-4,
    "perf/images_per_sec": 1893.4,
    "train/grad_norm": 3.0,
}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.4, "0s"),
        (8.0, "8s"),
        (59.6, "1m00s"),
        (72.0, "1m12s"),
        (3600.0, "1h00m"),
        (11100.0, "3h05m"),
        (187200.0, "2d04h"),
    ],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def test_format_scalars():
    assert format_scalars(SCALARS) == "loss 0.8123  top1 71.2%  lr 8.7e-04  1,893 img/s"
    evals = {"val/top5": 0.99, "val/top1": 0.9512, "val/loss": 0.2, "val/examples": 144}
    assert format_scalars(evals) == "val: loss 0.2000  top1 95.1%  top5 99.0%"
    assert format_scalars({"perf/mfu": 0.431, "perf/images_per_sec": 3.14159}) == (
        "3.14 img/s  mfu 43.1%"
    )


def _run(progress, clock, steps, seconds_per_step):
    for step in steps:
        clock.now += seconds_per_step
        progress.advance(step)


def test_rate_and_eta_leave_out_the_compilation():
    clock = Clock()
    pace = Pace(0, clock)
    assert pace.steps_per_sec() is None
    clock.now += 100  # the first step compiles
    _run(pace, clock, range(1, 3), 0.1)
    assert pace.remaining(1000) is None
    _run(pace, clock, range(3, 104), 0.1)
    assert pace.steps_per_sec() == pytest.approx(10)
    assert pace.remaining(1103) == pytest.approx(100)


def test_resumed_run_counts_only_its_own_steps():
    clock = Clock()
    pace = Pace(90_000, clock)
    _run(pace, clock, range(90_001, 90_004), 50.0)
    _run(pace, clock, range(90_004, 90_014), 0.5)
    assert pace.steps_per_sec() == pytest.approx(2)
    assert pace.remaining(90_113) == pytest.approx(50)


def test_pauses_count_for_the_eta_but_not_for_the_rate():
    clock = Clock()
    pace = Pace(0, clock)
    _run(pace, clock, range(1, 14), 1.0)
    with pace.idle():
        clock.now += 10
    assert pace.steps_per_sec() == pytest.approx(1)
    assert pace.remaining(23) == pytest.approx(20)
    _run(pace, clock, range(14, 18), 0.5)
    assert pace.steps_per_sec() == pytest.approx(2)
    assert pace.steps_per_sec() is None  # no step since
    _run(pace, clock, range(18, 20), 0.01)
    assert pace.steps_per_sec() == pytest.approx(100)


def test_plain_lines(capsys):
    clock = Clock()
    with Progress(1500, 32, clock=clock) as progress:
        _run(progress, clock, range(1, 4), 5.0)
        progress.report(SCALARS)
        _run(progress, clock, range(4, 201), 0.1)
        assert progress.images_per_sec() == pytest.approx(320)
        with progress.paused("evaluating val"):
            clock.now += 19.7
        progress.report(SCALARS)
        progress.report({"val/top1": 0.5})
        progress.message("saved [bold] to /tmp")
    assert capsys.readouterr().out.splitlines() == [
        "step 3/1500  0%  loss 0.8123  top1 71.2%  lr 8.7e-04  1,893 img/s",
        "step 200/1500  13%  loss 0.8123  top1 71.2%  lr 8.7e-04  1,893 img/s  eta 4m20s",
        "step 200/1500  13%  val: top1 50.0%  eta 4m20s",
        "saved [bold] to /tmp",
    ]


def test_other_processes_are_silent(monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with Progress(10, 1) as progress:
        progress.advance(5)
        progress.report(SCALARS)
        progress.message("hello")
    assert capsys.readouterr().out == ""
