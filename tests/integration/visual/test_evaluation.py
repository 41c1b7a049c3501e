# SPDX-License-Identifier: Apache-2.0
"""Pictures of an evaluation are PNGs that show what is in their numbers."""

import cv2
import numpy as np
import pytest

from vit_jax.evals.calibration import reliability
from vit_jax.visual import evaluation as plots

TITLE = r"$\no{$"  # no formula


def pixels(png):
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    assert 400 < min(image.shape[:2]) < max(image.shape[:2]) < 1500
    assert len(png) < 280_000
    return image.astype(int)


def changed(before, after):
    return int((np.abs(pixels(before) - pixels(after)).max(axis=-1) > 60).sum())


def test_reliability():
    confidence = np.linspace(0.05, 1, 60)
    right = np.random.default_rng(0).random(60) < confidence
    one_less = right.copy()
    one_less[np.flatnonzero(right)[0]] = False
    first, second = (
        plots.draw_reliability(reliability(confidence, each), TITLE) for each in (right, one_less)
    )
    assert changed(first, second) > 500  # a bar and its dot
    assert changed(first, first) == 0


@pytest.mark.parametrize("native", [32, None])
def test_sizes(native):
    rows = [(16, 0.5, 0.45, 0.55), (32, 0.9, 0.87, 0.93), (48, 0.7, 0.66, 0.74)]
    moved = [*rows[:2], (48, 0.75, 0.71, 0.79)]
    first, second = (plots.draw_sizes(each, native, TITLE) for each in (rows, moved))
    assert changed(first, second) > 200
    assert changed(first, plots.draw_sizes(rows, 16, TITLE)) > 100  # another size marked


def test_corruptions():
    table = {f"corruption_{i}": {1: 0.9 - i / 30, 5: 0.6 - i / 30} for i in range(9)}
    worse = {**table, "corruption_8": {1: 0.1, 5: 0.05}}
    first, second = (plots.draw_corruptions(each, 0.95, TITLE) for each in (table, worse))
    assert changed(first, second) > 500
    assert changed(first, plots.draw_corruptions(table, 0.5, TITLE)) > 500
