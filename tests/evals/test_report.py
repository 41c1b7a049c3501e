# SPDX-License-Identifier: Apache-2.0
"""The report's numbers against scikit-learn's, and its files."""

import csv

import cv2
import numpy as np
import pytest
from sklearn import metrics

from vit_jax.evals import report
from vit_jax.visual.confusion import draw_confusion


def guesses(num_classes, num_examples, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes - 1, num_examples).astype(np.int32)  # the last: none
    near = (labels + 1) % num_classes
    wrong = rng.random(num_examples) < 0.3
    return labels, np.where(wrong, near, labels).astype(np.int32)


def test_matches_scikit_learn():
    labels, predictions = guesses(6, 200)
    matrix = report.confusion_matrix(labels, predictions, 6)
    np.testing.assert_array_equal(
        matrix, metrics.confusion_matrix(labels, predictions, labels=range(6))
    )
    precision, recall, f1, count = metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(6), zero_division=0
    )
    rows = report.class_rows(labels, predictions, [str(k) for k in range(6)])
    np.testing.assert_allclose([r[3] for r in rows], precision, rtol=1e-12)
    np.testing.assert_allclose([r[4] for r in rows], recall, rtol=1e-12)
    np.testing.assert_allclose([r[2] for r in rows], recall, rtol=1e-12)
    np.testing.assert_allclose([r[5] for r in rows], f1, rtol=1e-12)
    assert [r[1] for r in rows] == count.tolist()


def test_most_confused_with():
    labels, predictions = np.array([[0, 0]] * 5 + [[0, 1]] + [[0, 2]] * 3 + [[1, 1], [2, 0]]).T
    rows = report.class_rows(labels, predictions, ["cat", "dog", "owl"])
    assert [row[6:] for row in rows] == [("owl", 3), ("", 0), ("cat", 1)]


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


def test_too_many_classes_says_so(tmp_path, capsys):
    num_classes = report.MAX_CLASSES + 1
    names = [str(k) for k in range(num_classes)]
    labels = np.arange(num_classes, dtype=np.int32)
    assert report.write_report(tmp_path, labels, labels, names) == ["per_class.csv"]
    assert "2,001 classes" in capsys.readouterr().out
    assert not (tmp_path / "confusion.png").exists()


@pytest.mark.parametrize("num_classes", [3, 31])
def test_dollars_in_names_are_no_formula(num_classes):
    names = [f"$\\no{k}{{$" for k in range(num_classes)]
    matrix = np.eye(num_classes, dtype=np.int64)
    assert draw_confusion(matrix, names, title=r"$\no{$").startswith(b"\x89PNG")
