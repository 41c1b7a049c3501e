# SPDX-License-Identifier: Apache-2.0
"""What a sweep found: a picture, and a page, one HTML file that asks no other host for anything.

The picture has four panels of laws, or one for each field that was searched.
"""

import base64
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from vit_jax.figures import plots as figures
from vit_jax.figures.plots import COLOURS, GREY, MARKERS, thin
from vit_jax.process.escapes import html, terminal
from vit_jax.settings.durations import format_duration
from vit_jax.storage import files
from vit_jax.sweeps.laws import FinishedRun, Laws
from vit_jax.sweeps.results import Outcome

_OTHER, _LAW = COLOURS[:2]
_BEYOND = 10.0  # how far beyond the largest run a law is drawn
_MAX_POINTS = 200  # of a curve on the page; more than can be seen


def draw_laws(laws: Laws, metric: str, title: str, out: Path) -> None:
    """Draw value against compute, against size by budget, and what the best size is.

    What was fitted stands below the panels.
    """
    figure, panels = _figure(title, 2, 2)
    _draw_compute(panels[0], laws, metric)
    _draw_budgets(panels[1], laws, metric)
    _draw_best_size(panels[2], laws)
    _draw_joint(panels[3], laws, metric)
    for letter, axes in zip("abcd", panels, strict=True):
        axes.set_title(f"({letter}) {axes.get_title()}", fontsize=10)
    lines = [text for line in _caption(laws) for text in textwrap.wrap(line, 150)]
    style = {"x": 0.02, "ha": "left", "fontsize": 8.5, "parse_math": False}
    figure.supxlabel("\n".join(lines), **style)
    figures.save(figure, out)


def _caption(laws: Laws) -> list[str]:
    found = []
    if laws.compute is not None:
        found.append(f"(a) {laws.compute.describe()}; the band holds 95 % of the laws that fit")
    if laws.isoflop is not None:
        left_out = "; ".join(laws.isoflop.refused)
        found += [f"(b) left out: {left_out}"] if left_out else []
        found.append(f"(c) runs of equal compute: {laws.isoflop.describe()}")
    if laws.joint is not None:
        found.append(f"(d) {laws.joint.describe()}")
    return found


def draw_search(found: Sequence[Outcome], metric: str, title: str, out: Path) -> None:
    """Draw the value of each run against every number that the runs do not share."""
    fields = searched(found)
    figure, panels = _figure(title, 1, max(len(fields), 1))
    for axes, field in zip(panels, fields, strict=False):
        points = [
            (float(r.point.overrides[field]), r.curve[-1][1], r.value is not None)
            for r in found
            if r.curve and field in r.point.overrides
        ]
        kinds = ((True, "o", _OTHER, "finished"), (False, "x", GREY, "given up"))
        for finished, marker, colour, label in kinds:
            some = [(x, y) for x, y, whole in points if whole is finished]
            if some:
                axes.plot(*zip(*some, strict=True), marker, color=colour, label=label)
        values = [x for x, _, _ in points]
        if values and min(values) > 0 and max(values) / min(values) > 10:
            axes.set_xscale("log")
            figures.log_ticks(axes.xaxis, *axes.get_xlim())
        _name(axes, field, metric)
        # Above the panel: in it, a legend's marker would look like a run.
        figures.legend(axes, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    if not fields:
        _annotate(panels[0], "the runs differ in no number")
    figures.save(figure, out)


def searched(found: Sequence[Outcome]) -> list[str]:
    """List the fields whose values are numbers and differ between runs."""
    fields = dict.fromkeys(field for result in found for field in result.point.overrides)
    values = {field: [r.point.overrides.get(field, 0) for r in found] for field in fields}
    numbers = {field for field, some in values.items() if {type(x) for x in some} <= {int, float}}
    given = {field: {r.point.overrides.get(field) for r in found} for field in numbers}
    return [field for field in fields if field in numbers and len(given[field]) > 1]


def _figure(title: str, rows: int, columns: int) -> tuple[Any, list[Any]]:
    size = (5.8 * columns, 4.2 * rows)
    figure, panels = figures.panels(size, rows=rows, columns=columns, dpi=130)
    figure.suptitle(terminal(title), parse_math=False)
    for axes in panels:
        axes.grid(alpha=0.25, which="both")
    return figure, panels


def _annotate(axes: Any, text: str) -> None:
    """Write into a panel why it has no law."""
    if not axes.has_data():
        axes.set_axis_off()
    style = {"fontsize": 8, "color": _LAW, "va": "bottom", "parse_math": False}
    lines = "\n".join(textwrap.wrap(terminal(text), 60))
    axes.text(0.03, 0.03, lines, transform=axes.transAxes, **style)


def _sizes(axes: Any, runs: Sequence[FinishedRun]) -> Any:
    """Return what colours numbers of parameters, with its bar beside the panel."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    params = [run.params for run in runs] or [1]
    norm = LogNorm(min(params), max(max(params), min(params) * 1.01))
    colours = ScalarMappable(norm, "viridis")
    bar = axes.figure.colorbar(colours, ax=axes, label="parameters")
    figures.log_ticks(bar.ax.yaxis, *bar.ax.get_ylim())
    return colours.to_rgba


def _draw_compute(axes: Any, laws: Laws, metric: str) -> None:
    colour = _sizes(axes, laws.runs)
    for run in laws.runs:
        axes.plot(run.flops, run.value, "o", color=colour(run.params), markersize=5)
    style = {"color": GREY, "markersize": 5, "markerfacecolor": "none"}
    for marker, (label, runs) in zip(MARKERS[1:], laws.others.items(), strict=False):
        points = [run.flops for run in runs], [run.value for run in runs]
        # No folder above a dataset's.
        plain = re.sub(r"((?:folder|csv|tar|parquet|hf):|=)/\S*/", r"\1", label)
        axes.plot(*points, marker, label=terminal(plain), **style)
    if laws.frontier:
        line = [run.flops for run in laws.frontier], [run.value for run in laws.frontier]
        axes.plot(*line, color="black", linewidth=1, label="frontier")
    if laws.compute is not None:
        low, high = laws.compute.span
        inside, beyond = np.geomspace(low, high, 100), np.geomspace(high, high * _BEYOND, 40)
        for x, line, label in ((inside, "-", "law"), (beyond, "--", "law, beyond the runs")):
            _curve(axes, x, laws.compute.predict(x), laws.compute.band(x), _LAW, label, line)
    else:
        _annotate(axes, laws.refused.get("compute", ""))
    values = [run.value for run in laws.runs]
    axes.set_ylim(0.5 * min(values), 1.5 * max(values))  # a band may go down to nothing
    _label(axes, "training FLOPs", metric)
    axes.set_title("value against compute")


def _draw_budgets(axes: Any, laws: Laws, metric: str) -> None:
    axes.set_title("runs of equal compute")
    if laws.isoflop is None:
        for run in laws.runs:
            axes.plot(run.params, run.value, "o", color=GREY, markersize=5)
        _annotate(axes, laws.refused.get("isoflop", ""))
        _label(axes, "parameters", metric)
        return
    from matplotlib import colormaps

    shades = np.linspace(0, 0.85, len(laws.isoflop.budgets))
    for i, (budget, shade) in enumerate(zip(laws.isoflop.budgets, shades, strict=True)):
        colour, marker = colormaps["plasma"](shade), MARKERS[i % len(MARKERS)]
        sizes = np.geomspace(min(budget.sizes), max(budget.sizes), 60)
        axes.plot(sizes, budget.predict(sizes), color=colour)
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 0}
        name = f"{figures.tick(float(f'{budget.flops:.2g}'))} FLOPs"
        axes.plot(budget.sizes, budget.losses, label=name, **style)
        best = {"label": "best size"} if budget is laws.isoflop.budgets[-1] else {}
        axes.plot(budget.params, budget.loss, "*", color="black", markersize=10, zorder=3, **best)
    _label(axes, "parameters", metric)


def _draw_best_size(axes: Any, laws: Laws) -> None:
    axes.set_title("the best size for each compute")
    span = [run.flops for run in laws.runs]
    if not span:
        return
    compute = np.geomspace(min(span), max(span) * _BEYOND, 100)
    if laws.isoflop is not None:
        for budget in laws.isoflop.budgets:
            axes.plot([budget.flops] * 2, budget.params_interval, color="black", linewidth=1)
            axes.plot(budget.flops, budget.params, "*", color="black", markersize=10)
        sizes, band = laws.isoflop.predict(compute), laws.isoflop.band(compute)
        _curve(axes, compute, sizes, band, _LAW, "runs of equal compute")
    if laws.joint is not None:
        best = laws.joint.optimum(compute)
        _curve(axes, compute, best.params, best.params_band, _OTHER, "L(N, D)", "--")
    if laws.isoflop is None and laws.joint is None:
        _annotate(axes, laws.refused.get("isoflop", ""))
    _label(axes, "training FLOPs", "parameters")


def _draw_joint(axes: Any, laws: Laws, metric: str) -> None:
    axes.set_title("predicted from parameters N and examples D")
    if laws.joint is None:
        _annotate(axes, laws.refused.get("joint", ""))
        return
    colour = _sizes(axes, laws.runs)
    for run in laws.runs:
        predicted = float(laws.joint.predict(run.params, run.examples))
        axes.plot(predicted, run.value, "o", color=colour(run.params), markersize=5)
    values = [run.value for run in laws.runs]
    ends = [min(values), max(values)]
    axes.plot(ends, ends, color=GREY, linewidth=1, label="predicted = measured")
    _label(axes, f"{metric}, predicted", f"{metric}, measured")


def _curve(
    axes: Any, x: Any, y: Any, band: Any, colour: str, label: str | None, line: str = "-"
) -> None:
    axes.plot(x, y, line, color=colour, label=label)
    axes.fill_between(x, *band, color=colour, alpha=0.18, linewidth=0)


def _label(axes: Any, x: str, y: str) -> None:
    """Scale both axes by logarithms and name them; draw a legend where it hides least."""
    axes.set(xscale="log", yscale="log")
    _name(axes, x, y)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        figures.log_ticks(axis, *limits)
    if axes.get_legend_handles_labels()[0]:
        legend = axes.legend(fontsize=8, framealpha=0.85, edgecolor="none")
        for text in legend.get_texts():
            text.set_parse_math(text.get_text().endswith(" FLOPs"))


def _name(axes: Any, x: str, y: str) -> None:
    for set_label, text in ((axes.set_xlabel, x), (axes.set_ylabel, y)):
        set_label(terminal(text), parse_math=False)


def write_page(
    out: Path,
    found: Sequence[Outcome],
    laws: Laws | None,
    *,
    title: str,
    summary: str,
    picture: Path,
) -> None:
    """Write the page: picture, laws, curves of all runs, and their table."""
    template = Template(Path(__file__).with_name("sweep_page.html").read_text(encoding="utf-8"))
    metric = found[0].point.metric
    text = template.substitute(
        title=html(title),
        summary=html(summary),
        picture=base64.b64encode(picture.read_bytes()).decode(),
        alt=html(f"{metric} of the runs"),
        laws="" if laws is None else _laws(laws),
        metric=html(metric),
        runs=_runs(found),
        # "</script>" in a name would end the element.
        data=json.dumps([_curves(result) for result in found]).replace("<", "\\u003c"),
    )
    files.write(out, text)


def _curves(result: Outcome) -> dict[str, object]:
    fields = {name: getattr(result.point, name) for name in ("steps", "examples", "flops")}
    return {
        "name": terminal(result.point.name),
        **fields,
        "curve": thin(result.curve, _MAX_POINTS),
        "train": thin(result.train_loss, _MAX_POINTS),
    }


def _laws(laws: Laws) -> str:
    rows = [tuple(map(html, row)) for row in laws.rows()]
    table = _table(["law", "quantity", "value", "95 % interval"], rows, numbers=(2, 3))
    refused = "".join(
        f'<p class="refused">{html(name)}: {html(reason)}</p>'
        for name, reason in laws.refused.items()
    )
    return f"<h2>Laws</h2>{table}{refused}"


def _runs(found: Sequence[Outcome]) -> str:
    rows = [
        (
            html(result.point.name),
            html(result.state),
            f"{result.point.params:,}",
            f"{result.point.examples:,}",
            f"{result.point.flops:.3g}",
            f"{result.curve[-1][1]:.4f}" if result.curve else "",
            format_duration(result.seconds) if result.seconds else "",
            f"<code>{html(result.point.run)}</code>",
        )
        for result in found
    ]
    metric = html(found[0].point.metric)
    header = ["run", "state", "parameters", "examples", "FLOPs", metric, "time", "directory"]
    return _table(header, rows, numbers=(2, 3, 4, 5, 6))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        parts = [
            f'<{tag} class="number">{cell}</{tag}>' if i in numbers else f"<{tag}>{cell}</{tag}>"
            for i, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table>{line('th', header)}{body}</table>"
