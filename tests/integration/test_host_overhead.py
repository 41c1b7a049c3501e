# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the host's part of a step runs the real loop; no time is judged."""

import time

import pytest

from benchmarks import host_overhead


@pytest.mark.slow
def test_times_the_loop_with_a_step_that_computes_nothing(capsys: pytest.CaptureFixture[str]):
    (seconds,) = host_overhead.seconds_per_step(8, compute=False, repeats=1, now=time.process_time)
    assert seconds > 0
    assert "step 8/8  100%  loss 0.0000  top1 0.0%" in capsys.readouterr().out


def test_the_row_is_in_milliseconds_beside_the_step():
    row = host_overhead.row([0.001, 0.003, 0.002], [0.04, 0.05, 0.06], load=0.5)
    assert (row.ours, row.peer_value, row.unit) == (2.0, 50.0, "ms")
    assert row.ratio == pytest.approx(0.04)
