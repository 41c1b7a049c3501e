# SPDX-License-Identifier: Apache-2.0
"""Every second of a run is of one stage, and it is the right one."""

import contextlib

from vit_jax.train.report.goodput import Goodput, Phase


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_nested_stages_count_once_and_all_sums_to_the_age() -> None:
    time = Time()
    clock = Goodput(time)
    time.now += 8  # init
    clock.switch(Phase.OTHER)
    with clock.spent(Phase.STEP):
        time.now += 4
        with clock.spent(Phase.SAVE):
            time.now += 2
        time.now += 1
    time.now += 0.5
    with contextlib.suppress(ValueError), clock.spent(Phase.EVAL):
        time.now += 16
        raise ValueError
    time.now += 0.5
    expected = {Phase.INIT: 8, Phase.STEP: 5, Phase.SAVE: 2, Phase.EVAL: 16, Phase.OTHER: 1}
    assert clock.seconds() == dict.fromkeys(Phase, 0.0) | expected
    assert str(clock) == (
        "goodput 16 % of 32.0 s: init 25, compile 0, data 0, step 16, eval 50, save 6, other 3"
    )


def test_shares_are_of_all_time_and_waiting_for_data_of_that_since_the_last_line() -> None:
    time = Time()
    clock = Goodput(time)
    time.now += 6
    with clock.spent(Phase.DATA):
        time.now += 2
    first = clock.scalars()
    assert (first["perf/wall_seconds"], first["perf/data_wait"]) == (8, 0.25)
    assert (first["perf/share/init"], first["perf/share/data"]) == (0.75, 0.25)
    with clock.spent(Phase.DATA):
        time.now += 6
    time.now += 2
    second = clock.scalars()
    assert (second["perf/wall_seconds"], second["perf/data_wait"]) == (16, 0.75)
    assert second["perf/share/data"] == 0.5
    shares = {name.removeprefix("perf/share/") for name in second if "share" in name}
    assert shares == set(Phase)
    assert sum(second[f"perf/share/{name}"] for name in Phase) == 1
