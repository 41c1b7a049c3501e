# SPDX-License-Identifier: Apache-2.0
"""A start makes Python search for garbage seldom, and not at its end."""

import pytest

from vit_jax.process import garbage, launch


def test_a_start_seldom_looks_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.signals, "end_at_once", lambda: None)
    asked: list[object] = []
    monkeypatch.setattr(garbage.gc, "set_threshold", asked.append)
    monkeypatch.setattr(garbage.atexit, "register", asked.append)
    launch.begin()
    assert asked == [50_000, garbage.gc.freeze]
