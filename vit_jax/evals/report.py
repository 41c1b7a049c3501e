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

from vit_jax.figures import plots as figures
from vit_jax.process import escapes

MAX_CLASSES = 2000  # a larger matrix has megabytes and cannot be viewed
MAX_NUMBERED = 30  # classes up to which the picture has names and numbers in its cells
MAX_NAMED = 100  # classes up to which it has names
_LONGEST = 40  # letters of a name in the picture

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
    count, recall, precision, f1 = _ratios(labels, predictions, len(class_names))
    hit = labels == predictions
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


def macro(labels: Int[np.ndarray, " M"], predictions: Int[np.ndarray, " M"]) -> dict[str, float]:
    """Return macro_top1 and macro_f1, means over the classes, as scikit-learn defines them.

    macro_top1 is the mean recall of the classes that occur (its balanced accuracy), macro_f1 the
    mean F1 of those and of the classes that are predicted without occurring.
    """
    count, recall, _, f1 = _ratios(labels, predictions, 0)
    named = np.union1d(labels, predictions)
    return {"macro_top1": float(recall[count > 0].mean()), "macro_f1": float(f1[named].mean())}


def _ratios(
    labels: Int[np.ndarray, " M"], predictions: Int[np.ndarray, " M"], num_classes: int
) -> tuple[Int[np.ndarray, " K"], *tuple[Float[np.ndarray, " K"], ...]]:
    """Return the examples of each class, its recall, precision and F1; K is at least 1 + max id."""
    num_classes = max(num_classes, *(int(ids.max()) + 1 for ids in (labels, predictions)))
    right, count, predicted = (
        np.bincount(ids, minlength=num_classes)
        for ids in (labels[labels == predictions], labels, predictions)
    )
    f1 = _ratio(2 * right, count + predicted)
    return count, _ratio(right, count), _ratio(right, predicted), f1


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
    csv.writer(file, lineterminator="\n").writerows(map(escapes.cell, row) for row in rows)
    return file.getvalue()


def draw_confusion(
    matrix: Int[np.ndarray, "K K"], class_names: Sequence[str], title: str = ""
) -> bytes:
    """Draw the confusion matrix as PNG: rows are true classes, colour is the share of the row.

    Few classes have names, and counts in the cells; some only names; many neither, and dots
    instead of cells, so that a single mistake among a million cells is still seen.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import PercentFormatter

    num_classes = len(class_names)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    named, numbered = num_classes <= MAX_NAMED, num_classes <= MAX_NUMBERED
    side = 3 + 0.45 * num_classes if numbered else 4 + 0.13 * num_classes if named else 12.0
    names = [escapes.terminal(name) for name in class_names]
    names = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    size = 10 if numbered else 6
    outside = 0.0085 * size * max(map(len, names)) if named else 0.0  # inches of the names
    figure, (axes,) = figures.panels((max(side, 5.0) + 0.8 + outside, side + outside), dpi=100)
    axes.grid(False)
    axes.spines[:].set_visible(True)
    # A sixth of the smallest share, so that the palest cell is not white.
    log = LogNorm(vmin=share[share > 0].min(initial=1) / 6, vmax=1)
    if named:
        norm: dict[str, Any] = {"vmin": 0, "vmax": 1} if numbered else {"norm": log}
        image = axes.imshow(share, cmap="Blues", interpolation="nearest", **norm)
        _name_ticks(axes, names, size)
    else:
        true, predicted = np.nonzero(matrix)
        order = np.argsort(share[true, predicted], kind="stable")  # the worst on top
        true, predicted = true[order], predicted[order]
        dot = (72 * 0.8 * side / num_classes) ** 2  # a cell's area in square points
        style = {"s": max(dot, 3), "marker": "s", "linewidths": 0, "cmap": "Blues", "norm": log}
        image = axes.scatter(predicted, true, c=share[true, predicted], **style)
        axes.set(xlim=(-0.5, num_classes - 0.5), ylim=(num_classes - 0.5, -0.5), aspect="equal")
    if numbered:
        for (row, column), number in np.ndenumerate(matrix):
            if number:
                colour = "white" if share[row, column] > 0.5 else "black"
                size = 10 if number < 10_000 else 7
                place = {"ha": "center", "va": "center", "fontsize": size}
                axes.text(column, row, f"{number}", color=colour, **place)
    style = {"fraction": 0.046, "pad": 0.02, "format": PercentFormatter(1, decimals=None)}
    figure.colorbar(image, ax=axes, label="share of the true class", **style)
    accuracy = np.trace(matrix) / max(matrix.sum(), 1)
    heading = f"{title + ': ' if title else ''}top-1 {accuracy:.2%} of {matrix.sum():,}"
    axes.set_title(escapes.terminal(heading), parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figures.png(figure, dpi=130, bbox_inches="tight")


def _name_ticks(axes: Any, names: Sequence[str], size: int) -> None:
    """Name the rows and columns, and rule lines between them for the eye to follow."""
    places = np.arange(len(names))
    short = max(map(len, names)) <= 3
    style = {"fontsize": size, "parse_math": False}  # a "$" in a name is no formula
    axes.set_xticks(places, names, rotation=0 if short else 90, **style)
    axes.set_yticks(places, names, **style)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
