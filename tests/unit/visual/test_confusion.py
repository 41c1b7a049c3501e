# SPDX-License-Identifier: Apache-2.0
"""One mistake is seen in the confusion matrix of few classes, and of many."""

import io

import numpy as np
from PIL import Image

from vit_jax.visual.confusion import draw_confusion


def _draw(matrix: np.ndarray, title: str = "") -> np.ndarray:
    names = [f"$class {i}$" for i in range(len(matrix))]
    return np.asarray(Image.open(io.BytesIO(draw_confusion(matrix, names, title))).convert("RGB"))


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
