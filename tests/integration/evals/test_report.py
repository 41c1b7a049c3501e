# SPDX-License-Identifier: Apache-2.0
"""The report's numbers against scikit-learn's, and its files."""

import csv

import cv2
import numpy as np
import pytest

from tests.unit.evals.test_report import guesses
from vit_jax.evals import report
from vit_jax.evals.report import draw_confusion


def test_writes_tables_and_picture(tmp_path):
    names = ["a, b", "ünïcode", "c"]  # a comma must survive the CSV
    labels, predictions = guesses(3, 50)
    written = report.write_report(tmp_path / "new" / "val", labels, predictions, names, "val")
    assert written == ["per_class.csv", "confusion.csv", "confusion.png"]
    with open(tmp_path / "new" / "val" / "per_class.csv", newline="", encoding="utf8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == list(report.COLUMNS)
    assert [row[0] for row in rows[1:]] == names
    with open(tmp_path / "new" / "val" / "confusion.csv", newline="", encoding="utf8") as file:
        cells = list(csv.reader(file))
    assert cells[0][1:] == names
    assert sum(int(cell) for row in cells[1:] for cell in row[1:]) == 50


@pytest.mark.parametrize("num_classes", [3, 10, 31, 1000])
def test_picture_shows_a_single_mistake(num_classes):
    """One wrong example must change the picture, however many classes there are."""
    few = np.eye(num_classes, dtype=np.int64) * 50
    few[-1, 0] = 1  # the scale of colours starts at one mistake in both pictures
    more = few.copy()
    more[num_classes // 4, 3 * num_classes // 4] = 1
    names = [f"class {k}" for k in range(num_classes)]
    before, after = (
        cv2.imdecode(np.frombuffer(draw_confusion(m, names), np.uint8), 1).astype(int)
        for m in (few, more)
    )
    height, width = after.shape[:2]
    assert 500 < width < 3000
    assert 500 < height < 3000
    assert before.shape == after.shape
    # The upper right quarter, without the title, the diagonal and the colour bar.
    quarter = np.s_[height // 12 : height // 2, width // 2 : int(width * 0.85)]
    changed = (np.abs(before - after)[quarter].max(axis=-1) > 30).sum()
    assert changed >= 4  # pixels


@pytest.mark.parametrize("num_classes", [3, 31])
def test_dollars_in_names_are_no_formula(num_classes):
    names = [f"$\\no{k}{{$" for k in range(num_classes)]
    matrix = np.eye(num_classes, dtype=np.int64)
    assert draw_confusion(matrix, names, title=r"$\no{$").startswith(b"\x89PNG")
