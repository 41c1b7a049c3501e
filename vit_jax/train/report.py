# SPDX-License-Identifier: Apache-2.0
"""The learning curve of a run as a picture."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vit_jax.evals import is_accuracy
from vit_jax.train.writers import read_jsonl

# Okabe and Ito's colours, which stay apart for every kind of colour vision
# (jfly.uni-koeln.de/color); train is grey and thin because it is many noisy points.
_TRAIN = "#8c8c8c"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MAX_POINTS = 2000  # more than pixels; a million-step run still draws in a second

Series = dict[str, tuple[list[int], list[float]]]


def _series(rows: Sequence[dict[str, Any]], wanted: Callable[[str], bool]) -> Series:
    """Collect the curves of metrics by where they were measured; train comes first."""
    found: Series = {}
    for row in rows:
        for name, value in row.items():
            group, _, last = name.rpartition("/")
            if wanted(last) and group and isinstance(value, int | float):
                label = group if last in ("loss", "top1") else name
                steps, values = found.setdefault(label, ([], []))
                steps.append(row["step"])
                values.append(float(value))
    return dict(sorted(found.items(), key=lambda item: item[0] != "train"))


def _has_probes(series: Series) -> bool:
    return any("/" in label for label in series)


def _thin(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    every = -(-len(steps) // _MAX_POINTS)
    # Counted from the end: the last point is always drawn.
    return steps[::-1][::every][::-1], values[::-1][::every][::-1]


def _draw(
    axes: Any, series: Series, *, scale: float, form: str, best_of: Callable[..., int], corner: str
) -> None:
    colours = itertools.cycle(_COLOURS)
    for group, (steps, values) in series.items():
        train = group == "train"
        colour = _TRAIN if train else next(colours)
        shown = [value * scale for value in values]
        label = f"{group}  {form.format(shown[-1])}"
        if not train:
            # Of equals the last, as the checkpoint that is kept.
            best = best_of(reversed(range(len(shown))), key=shown.__getitem__)
            axes.plot(
                steps[best],
                shown[best],
                marker="o",
                markersize=8,
                markeredgewidth=1.8,
                markerfacecolor="white",
                markeredgecolor=colour,
                clip_on=False,
                zorder=3,
            )
            if best != len(shown) - 1:
                label += f"  (best {form.format(shown[best])} at step {steps[best]:,})"
        axes.plot(
            *_thin(steps, shown),
            color=colour,
            linewidth=1.0 if train else 2.0,
            marker="" if train or len(steps) > 40 else "o",
            markersize=3.5,
            label=label,
            zorder=1 if train else 2,
        )
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(loc=corner, frameon=False, fontsize=9).get_texts():
        text.set_parse_math(False)  # a "$" in a name is no formula


def learning_curve(metrics_jsonl: Path, out_png: Path, title: str) -> bool:
    """Draw loss and accuracy against steps, of training and of every evaluation in the file.

    Returns False, and draws nothing, if the file holds neither.
    """
    rows = read_jsonl(metrics_jsonl)
    loss = _series(rows, lambda name: name == "loss")
    accuracy = _series(rows, lambda name: is_accuracy(name) and name != "top5")
    panels = [panel for panel in (loss, accuracy) if panel]
    if not panels:
        return False
    # Agg's own objects, not pyplot: nothing global, no display, nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * len(panels), 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if panel is loss:
            _draw(axes, panel, scale=1.0, form="{:.3f}", best_of=min, corner="upper right")
            axes.set_ylabel("loss")
        else:
            _draw(axes, panel, scale=100.0, form="{:.1f}%", best_of=max, corner="lower right")
            axes.set_ylabel("accuracy (%)" if _has_probes(panel) else "top-1 accuracy (%)")
    temporary = out_png.with_name(out_png.name + ".tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(out_png)
    return True
