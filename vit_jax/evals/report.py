# SPDX-License-Identifier: Apache-2.0
"""Per-class table (CSV) and confusion matrix (CSV, PNG) of a finished evaluation."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vit_jax.visual.confusion import draw_confusion

MAX_CLASSES = 2000  # a larger matrix has megabytes and cannot be viewed

COLUMNS = ("class", "count", "top1", "precision", "recall", "f1", "most_confused_with", "confused")


def confusion_matrix(
    labels: Int[np.ndarray, " M"], predictions: Int[np.ndarray, " M"], num_classes: int
) -> Int[np.ndarray, "K K"]:
    """Count the examples of true class i (row) that were predicted as j (column)."""
    cells = labels.astype(np.int64) * num_classes + predictions
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_rows(
    labels: Int[np.ndarray, " M"], predictions: Int[np.ndarray, " M"], class_names: Sequence[str]
) -> list[tuple[str, int, float, float, float, float, str, int]]:
    """Compute a row of `COLUMNS` per class; a ratio over no example is 0.

    With one label per example a class's top-1 accuracy is its recall. `most_confused_with` is the
    most frequent wrong prediction, `confused` its count ("" and 0: none).
    """
    num_classes, hit = len(class_names), labels == predictions
    count, predicted, right = (
        np.bincount(ids, minlength=num_classes) for ids in (labels, predictions, labels[hit])
    )
    recall, precision = _ratio(right, count), _ratio(right, predicted)
    f1 = _ratio(2 * right, count + predicted)
    mistakes: dict[int, tuple[int, int]] = {}  # by true class: how many, as what
    pairs = np.stack([labels[~hit], predictions[~hit]], axis=1)
    for (true, guess), times in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
        if times > mistakes.get(int(true), (0, 0))[0]:
            mistakes[int(true)] = (int(times), int(guess))
    rows = []
    for k, name in enumerate(class_names):
        times, guess = mistakes.get(k, (0, 0))
        ratios = (float(recall[k]), float(precision[k]), float(recall[k]), float(f1[k]))
        rows.append((name, int(count[k]), *ratios, class_names[guess] if times else "", times))
    return rows


def write_report(
    folder: str | os.PathLike[str],
    labels: Int[np.ndarray, " M"],
    predictions: Int[np.ndarray, " M"],
    class_names: Sequence[str],
    title: str = "",
) -> list[str]:
    """Write per_class.csv, confusion.csv and confusion.png; returns the names of those written.

    Above `MAX_CLASSES` classes the matrix is skipped, with a line of output.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    num_classes = len(class_names)
    rows = [
        [f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row]
        for row in class_rows(labels, predictions, class_names)
    ]
    (out / "per_class.csv").write_text(_csv([COLUMNS, *rows]), encoding="utf8")
    if num_classes > MAX_CLASSES:
        print(f"no confusion matrix: {num_classes:,} classes are more than {MAX_CLASSES:,}")
        return ["per_class.csv"]
    matrix = confusion_matrix(labels, predictions, num_classes)
    header = ["true \\ predicted", *class_names]
    cells = [[name, *row] for name, row in zip(class_names, matrix.tolist(), strict=True)]
    (out / "confusion.csv").write_text(_csv([header, *cells]), encoding="utf8")
    (out / "confusion.png").write_bytes(draw_confusion(matrix, class_names, title))
    return ["per_class.csv", "confusion.csv", "confusion.png"]


def _ratio(count: Any, total: Any) -> Float[np.ndarray, "..."]:
    return np.asarray(count, np.float64) / np.maximum(np.asarray(total, np.float64), 1)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
