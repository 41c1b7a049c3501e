# SPDX-License-Identifier: Apache-2.0
"""A confusion matrix as a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.visual import figures

MAX_NUMBERED = 30  # classes up to which the picture has names and numbers in its cells
MAX_NAMED = 100  # classes up to which it has names


def draw_confusion(
    matrix: Int[np.ndarray, "K K"], class_names: Sequence[str], title: str = ""
) -> bytes:
    """Draw the confusion matrix as PNG: rows are true classes, colour is the share of the row.

    Few classes have names, and counts in the cells; some only names; many neither, and dots
    instead of cells, so that a single mistake among a million cells is still seen.
    """
    from matplotlib.colors import LogNorm

    num_classes = len(class_names)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    named, numbered = num_classes <= MAX_NAMED, num_classes <= MAX_NUMBERED
    side = 3 + 0.45 * num_classes if numbered else 4 + 0.13 * num_classes if named else 12.0
    side = max(side, 5.0)
    figure, (axes,) = figures.panels((side + 0.8, side), dpi=100)
    axes.grid(False)
    axes.spines[:].set_visible(True)
    # A sixth of the smallest share, so that the palest cell is not white.
    log = LogNorm(vmin=share[share > 0].min(initial=1) / 6, vmax=1)
    if named:
        norm: dict[str, Any] = {"vmin": 0, "vmax": 1} if numbered else {"norm": log}
        image = axes.imshow(share, cmap="Blues", interpolation="nearest", **norm)
        _name_ticks(axes, class_names, size=10 if numbered else 6)
    else:
        true, predicted = np.nonzero(matrix)
        order = np.argsort(share[true, predicted], kind="stable")  # the worst on top
        true, predicted = true[order], predicted[order]
        dot = (72 * 0.8 * side / num_classes) ** 2  # a cell's area in square points
        image = axes.scatter(
            predicted,
            true,
            c=share[true, predicted],
            s=max(dot, 3),
            marker="s",
            linewidths=0,
            cmap="Blues",
            norm=log,
        )
        axes.set(xlim=(-0.5, num_classes - 0.5), ylim=(num_classes - 0.5, -0.5), aspect="equal")
    if numbered:
        for (row, column), number in np.ndenumerate(matrix):
            if number:
                colour = "white" if share[row, column] > 0.5 else "black"
                size = 10 if number < 10_000 else 7
                place = {"ha": "center", "va": "center", "fontsize": size}
                axes.text(column, row, f"{number}", color=colour, **place)
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046, pad=0.02)
    accuracy = np.trace(matrix) / max(matrix.sum(), 1)
    heading = f"{title + ': ' if title else ''}top-1 {accuracy:.2%} of {matrix.sum():,}"
    axes.set_title(heading, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figures.png(figure, dpi=130)


def _name_ticks(axes: Any, class_names: Sequence[str], size: int) -> None:
    """Name the rows and columns, and rule lines between them for the eye to follow."""
    names = [name if len(name) <= 22 else name[:21] + "…" for name in class_names]
    places = np.arange(len(names))
    short = max(map(len, names)) <= 3
    style = {"fontsize": size, "parse_math": False}  # a "$" in a name is no formula
    axes.set_xticks(places, names, rotation=0 if short else 90, **style)
    axes.set_yticks(places, names, **style)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
