# SPDX-License-Identifier: Apache-2.0
"""The learning curve of a run."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vit_jax.figures import plots as figures
from vit_jax.process import escapes
from vit_jax.settings import measures

_MAX_POINTS = 2000  # more than pixels; a million-step run still draws in a second

Series = dict[str, list[tuple[int, float]]]


def _series(rows: Iterable[dict[str, Any]], wanted: Callable[[str], bool]) -> Series:
    """Collect curves (step, value) of the wanted metrics by where measured; train comes first."""
    found: Series = {}
    for row in rows:
        for name, value in row.items():
            group, _, last = name.rpartition("/")
            if wanted(last) and group and isinstance(value, int | float):
                label = group if last in ("loss", "top1") else name
                found.setdefault(label, []).append((row["step"], float(value)))
    return dict(sorted(found.items(), key=lambda item: item[0] != "train"))


def _draw(axes: Any, series: Series, scale: float, form: str, kept: int | None) -> None:
    # Markers and dashes tell lines apart in a print without colours.
    kinds = map(itertools.cycle, (figures.COLOURS[:-1], figures.MARKERS, figures.DASHES))
    looks = zip(*kinds, strict=False)
    for group, points in series.items():
        train = group == "train"
        # Train is grey and thin because it is many noisy points.
        colour, marker, dash = (figures.GREY, "", "-") if train else next(looks)
        steps, values = zip(*((step, value * scale) for step, value in points), strict=True)
        label = f"{group}  {form.format(values[-1])}"
        if not train and kept in steps and kept != steps[-1]:
            label += f"  ({form.format(values[steps.index(kept)])} at step {kept:,})"
        style = {"linewidth": 1.0, "zorder": 1} if train else {"linewidth": 2.0, "zorder": 2}
        style |= {"marker": marker, "markersize": 4, "markevery": max(1, len(steps) // 20)}
        points = (figures.thin(column, _MAX_POINTS) for column in (steps, values))
        axes.plot(*points, color=colour, label=label, linestyle=dash, **style)


def learning_curve(
    rows: Iterable[dict[str, Any]],
    out_png: Path,
    title: str,
    *,
    kept: int | None = None,
    metric: str = "",
) -> bool:
    """Draw the declared metrics of the rows of metrics.jsonl against steps: train and evaluations.

    Metrics of one title (`measures.Measure`) share a panel, the loss first; of top-5 there is none.
    `kept` is the step that the run's directory stands for as weights, the best by `metric`; a line
    marks it. Returns False, with nothing drawn, if no row has any.
    """
    rows = list(rows)
    lasts = {name.rpartition("/")[2] for row in rows for name in row} - {"top5"}
    kinds = {last: found for last in sorted(lasts) if (found := measures.of(last))}
    titles = sorted({(m.title, m.unit, m.better) for m in kinds.values()}, key=_order)
    drawn = []
    for name, unit, better in titles:
        of_title = {last for last, m in kinds.items() if (m.title, m.unit) == (name, unit)}
        if series := _series(rows, of_title.__contains__):
            axis = f"{'top-1 ' if of_title == {'top1'} else ''}{name}"
            share = unit == "%"
            axis += f" ({unit})" if unit else ""
            form = "{:.1f}%" if share else "{:.3f}"
            corner = "upper right" if better is measures.Mode.MIN else "lower right"
            drawn.append((series, axis, 100.0 if share else 1.0, form, corner))
    if not drawn:
        return False
    figure, panels = figures.panels((5.6 * len(drawn), 3.8), columns=len(drawn))
    figure.suptitle(escapes.terminal(title), parse_math=False)
    for axes, (series, name, scale, form, corner) in zip(panels, drawn, strict=True):
        _draw(axes, series, scale, form, kept)
        if kept is not None:
            label = f"step {kept:,}, best by {metric}"
            axes.axvline(kept, color="black", linewidth=1, linestyle=":", label=label, zorder=0)
        axes.set(xlabel="step", ylabel=name)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        figures.legend(axes, loc=corner, fontsize=9)
    figures.save(figure, out_png)
    return True


def _order(kind: tuple[str, ...]) -> tuple[bool, bool, str]:
    return kind[0] != "loss", kind[0] != "accuracy", kind[0]
