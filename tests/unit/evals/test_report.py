# SPDX-License-Identifier: Apache-2.0
"""The report's numbers against scikit-learn's, its files and its picture."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image
from sklearn import metrics

from vit_jax.evals import report


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


def test_means_over_classes_match_scikit_learn():
    labels, predictions = guesses(6, 200)  # class 5 is predicted and does not occur
    found = report.macro(labels, predictions)
    expected = metrics.recall_score(labels, predictions, labels=range(5), average="macro")
    assert found["macro_top1"] == pytest.approx(expected, rel=1e-12)
    assert found["macro_f1"] == pytest.approx(
        metrics.f1_score(labels, predictions, average="macro"), rel=1e-12
    )
    assert 5 in predictions
    uneven = np.repeat([0, 3], [90, 10])
    assert report.macro(uneven, np.zeros(100, int))["macro_top1"] == 0.5


def test_most_confused_with():
    labels, predictions = np.array([[0, 0]] * 5 + [[0, 1]] + [[0, 2]] * 3 + [[1, 1], [2, 0]]).T
    rows = report.class_rows(labels, predictions, ["cat", "dog", "owl"])
    assert [row[6:] for row in rows] == [("owl", 3), ("", 0), ("cat", 1)]


def test_too_many_classes_says_so(tmp_path, capsys):
    num_classes = report.MAX_CLASSES + 1
    names = [str(k) for k in range(num_classes)]
    labels = np.arange(num_classes, dtype=np.int32)
    assert report.write_report(tmp_path, labels, labels, names) == ["per_class.csv"]
    assert "2,001 classes" in capsys.readouterr().out
    assert not (tmp_path / "confusion.png").exists()


def _draw(matrix: np.ndarray, title: str = "") -> np.ndarray:
    names = [f"$class {i}$" for i in range(len(matrix))]
    return np.asarray(
        Image.open(io.BytesIO(report.draw_confusion(matrix, names, title))).convert("RGB")
    )


def test_a_mistake_among_few_classes_has_its_own_cell() -> None:
    right = np.diag([1000, 1000])
    wrong = right.copy()
    wrong[0, 1] = 1
    first, second = _draw(right), _draw(wrong)
    # The accuracy in the title differs too: only the matrix counts here.
    top = len(first) // 8
    assert (first[top:] != second[top:]).any()


def test_a_mistake_among_many_classes_is_a_dot() -> None:
    matrix = np.zeros((101, 101), np.int64)
    matrix[70, 20] = 1
    image = _draw(matrix).astype(int)
    blue = image[..., 2] - image[..., 0] > 40
    rows, columns = np.nonzero(blue[:, : image.shape[1] * 3 // 4])  # without the colour bar
    assert len(rows) > 3
    assert np.ptp(rows) < 12
    assert np.ptp(columns) < 12
    assert rows.mean() > len(image) / 2 > columns.mean()


@pytest.mark.parametrize("count", [20, 100])
def test_long_names_stand_whole_in_the_picture(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}

    def png(figure, **options):
        figure.set_dpi(130)
        figure.canvas.draw()
        drawn["figure"] = figure
        return b""

    monkeypatch.setattr(report.figures, "png", png)
    names = [f"German Shorthaired Pointer {i}" for i in range(count)]
    report.draw_confusion(np.eye(count, dtype=int), names, "pets")
    axes = drawn["figure"].axes[0]
    for labels, side in ((axes.get_xticklabels(), 0), (axes.get_yticklabels(), 1)):
        assert [label.get_text() for label in labels] == names
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda b: b.p0[side])
        assert all(a.p1[side] <= b.p0[side] + 1 for a, b in itertools.pairwise(boxes))
