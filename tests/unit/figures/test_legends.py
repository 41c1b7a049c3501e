# SPDX-License-Identifier: Apache-2.0
"""A legend hides nothing and is mistaken for nothing: neither bars, nor points, nor a line."""

import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit_jax.evals.calibration import reliability
from vit_jax.figures import plots
from vit_jax.sweeps import report
from vit_jax.visual.evaluation import draw_reliability


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which figures are added as they are written."""
    figures: list[Any] = []
    png = plots.png
    monkeypatch.setattr(plots, "png", lambda each, **kw: figures.append(each) or png(each, **kw))
    return figures


def test_of_reliability_lies_between_the_panels(drawn: list[Any]) -> None:
    confidence = np.linspace(0.01, 0.99, 60, dtype=np.float32)
    draw_reliability(reliability(confidence, np.ones(60, bool)), "bars up to the top")
    upper, lower = drawn[0].axes
    legend = upper.get_legend().get_window_extent()
    assert not legend.overlaps(upper.get_window_extent())
    assert not legend.overlaps(lower.get_window_extent())


def test_of_a_search_lies_above_the_panel_and_its_ticks_are_few(
    drawn: list[Any], tmp_path: Path
) -> None:
    runs = [
        types.SimpleNamespace(
            point=types.SimpleNamespace(overrides={"optim.lr": rate}), curve=[(1, rate)], value=rate
        )
        for rate in (1e-4, 3e-4, 5e-3)
    ]
    found: Any = runs
    report.draw_search(found, "val/top1", "", tmp_path / "search.png")
    (axes,) = drawn[0].axes
    assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
    low, high = axes.get_xlim()
    ticks = [
        label.get_window_extent()
        for label in [*axes.get_xticklabels(), *axes.get_xticklabels(minor=True)]
        if label.get_text() and low <= label.get_position()[0] <= high
    ]
    assert len(ticks) > 2
    for one, two in itertools.pairwise(ticks):
        assert not one.overlaps(two)


def test_of_a_learning_curve_covers_the_line_of_the_best_step(
    drawn: list[Any], tmp_path: Path
) -> None:
    rows = [{"step": step, "val/top1": step / 10} for step in range(1, 10)]
    assert plots.learning_curve(rows, tmp_path / "x.png", "", kept=8, metric="val/top1")
    (axes,) = drawn[0].axes
    assert axes.get_legend().get_frame().get_alpha() == 1
