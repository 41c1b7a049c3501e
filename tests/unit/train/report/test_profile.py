# SPDX-License-Identifier: Apache-2.0
"""--profile writes a trace that opens and holds the steps asked for; a run's time is told whole."""

from pathlib import Path

import jax
import pytest

from vit_jax.train.report import profile
from vit_jax.train.report.profile import Window


def test_a_kill_inside_the_window_does_not_keep_the_run_from_going_on(tmp_path: Path) -> None:
    """What was traced is lost with the process; the same command continues all the same."""
    window = Window(5, 50)
    profiler = profile.Profiler(window, tmp_path, wait=lambda: None, log=lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.profiler, "start_trace", lambda _: None)
        with profiler.step(5):
            pass
    assert profile.check(window, tmp_path, start=20, total=100) is None
    assert profile.check(window, tmp_path, start=4, total=100) == window
