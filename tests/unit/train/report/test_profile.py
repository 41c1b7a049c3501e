# SPDX-License-Identifier: Apache-2.0
"""--profile writes a trace that opens and holds the steps asked for; a run's time is told whole."""

from pathlib import Path

import jax
import pytest

from vit_jax.errors import UserError
from vit_jax.train.report import profile
from vit_jax.train.report.profile import Window


def test_a_window_is_read_or_refused() -> None:
    assert profile.read_window("1,1") == Window(1, 1)
    assert profile.read_window("100,5").last == 104
    for text in ("0,5", "5,0", "-1,-1"):
        with pytest.raises(UserError, match=f"--profile={text}: STEP and COUNT must be at least 1"):
            profile.read_window(text)


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
