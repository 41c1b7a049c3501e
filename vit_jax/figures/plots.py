# SPDX-License-Identifier: Apache-2.0
"""Figures of one look: colours, panels, legends, PNG; the learning curve of a run is one.

Matplotlib is imported when one is drawn.
"""

import functools
import io
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vit_jax.process import escapes
from vit_jax.settings import measures
from vit_jax.storage import files

# Okabe and Ito's colours, which stay apart for every kind of colour vision
# (jfly.uni-koeln.de/color).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
GREY = "#8c8c8c"
MARKERS = "os^DvP*X"
DASHES = ("-", "--", "-.")
Point = TypeVar("Point")
_MAX_POINTS = 2000  # more than pixels; a million-step run still draws in a second
Series = dict[str, list[tuple[int, float]]]


def panels(
    size: tuple[float, float], *, rows: int = 1, columns: int = 1, dpi: int = 150, **options: Any
) -> tuple[Any, list[Any]]:
    """Return a figure of `size` inches and its panels, row by row; `options` go to `subplots`."""
    # Agg's own objects, not pyplot: nothing global, no display, nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    found = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in found:
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def legend(axes: Any, **options: Any) -> None:
    """Draw a legend that stays readable on dark bars, in which a "$" of a name is no formula."""
    style = {"framealpha": 0.85, "edgecolor": "none", "fontsize": 8}
    for text in axes.legend(**{**style, **options}).get_texts():
        text.set_text(escapes.terminal(text.get_text()))
        text.set_parse_math(False)


def finish(figure: Any, axes: Any, title: str, **options: Any) -> bytes:
    """Return the PNG of a figure with a title above `axes` and a legend in it."""
    axes.set_title(escapes.lines(title), fontsize=10, parse_math=False)
    legend(axes, **options)
    return png(figure)


def png(figure: Any, **options: Any) -> bytes:
    """Return a figure as PNG; `options` go to `savefig`.

    Characters that Matplotlib's own font lacks are drawn by a font of this machine that has them.
    Where none has, a line says which and what to install.
    """
    _choose_fonts(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", **options)
    return file.getvalue()


def save(figure: Any, out: Path) -> None:
    """Write a figure as PNG."""
    files.write(out, png(figure))


def _choose_fonts(figure: Any) -> None:
    """Give every text of a figure the fonts that its characters need."""
    from matplotlib.text import Text

    for axes in figure.axes:  # which writes their labels; else they are written while it is drawn
        _ = axes.get_xticklabels(), axes.get_yticklabels()
    texts = figure.findobj(Text)
    drawn = {character for text in texts for character in text.get_text() if character > "\x7f"}
    families, lacking = fonts(frozenset(drawn))
    if len(families) > 1:
        for text in texts:
            text.set_family(list(families))
    if lacking:  # which `fonts` has said; Matplotlib would say it again for each character
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)


@functools.cache
def fonts(drawn: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the fonts that together have some characters, the usual one first, and what none has.

    Says the latter in a line, once.
    """
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    usual = font_manager.FontProperties().get_name()
    lacking = set(drawn)
    families = [usual]
    path = font_manager.findfont(usual)
    lacking -= {chr(code) for code in FT2Font(path).get_charmap()} if lacking else set()
    for font in font_manager.fontManager.ttflist if lacking else ():
        plain = font.style == "normal" and font.weight == 400 and font.name not in families
        if not plain or font.name.startswith("Last Resort"):  # whose glyphs are all boxes
            continue
        found = lacking & {chr(code) for code in FT2Font(font.fname).get_charmap()}
        if found:
            families.append(font.name)
            lacking -= found
    if lacking:
        some = "".join(sorted(c for c in lacking if c.isprintable())[:8])
        advice = "install one that has them, such as Debian's fonts-noto-cjk for Chinese"
        line = f"no font here has characters of names in pictures ({some}), which become boxes"
        print(f"warning: {line}; {advice}", file=sys.stderr)
    return tuple(families), frozenset(lacking)


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis from `low` to `high` by `tick`: some values, however long it is."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    decades = math.log10(high / low)
    if decades < 1:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    else:
        subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda x, _: tick(x)))
    axis.set_minor_formatter(NullFormatter())


def tick(x: float) -> str:
    """Write 0.02, 5 and 200; powers of ten below 0.001 and from 1,000 on."""
    if x <= 0:  # a place that a logarithmic axis does not have
        return ""
    if 1e-3 <= x < 1e3:
        return f"{x:.4g}"
    power = math.floor(math.log10(x) + 1e-9)
    factor = f"{x / 10.0**power:.3g}"
    return rf"$10^{{{power}}}$" if factor == "1" else rf"${factor}\times10^{{{power}}}$"


def thin(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Keep at most `most` of the points, evenly, counted from the last, which is always kept."""
    return points[:: -max(1, -(-len(points) // most))][::-1]


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
    kinds = map(itertools.cycle, (COLOURS[:-1], MARKERS, DASHES))
    looks = zip(*kinds, strict=False)
    for group, points in series.items():
        train = group == "train"
        # Train is grey and thin because it is many noisy points.
        colour, marker, dash = (GREY, "", "-") if train else next(looks)
        steps, values = zip(*((step, value * scale) for step, value in points), strict=True)
        label = f"{group}  {form.format(values[-1])}"
        if not train and kept in steps and kept != steps[-1]:
            label += f"  ({form.format(values[steps.index(kept)])} at step {kept:,})"
        style = {"linewidth": 1.0, "zorder": 1} if train else {"linewidth": 2.0, "zorder": 2}
        style |= {"marker": marker, "markersize": 4, "markevery": max(1, len(steps) // 20)}
        points = (thin(column, _MAX_POINTS) for column in (steps, values))
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
    figure, drawn_on = panels((5.6 * len(drawn), 3.8), columns=len(drawn))
    figure.suptitle(escapes.terminal(title), parse_math=False)
    for axes, (series, name, scale, form, corner) in zip(drawn_on, drawn, strict=True):
        _draw(axes, series, scale, form, kept)
        if kept is not None:
            label = f"step {kept:,}, best by {metric}"
            axes.axvline(kept, color="black", linewidth=1, linestyle=":", label=label, zorder=0)
        axes.set(xlabel="step", ylabel=name)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        legend(axes, loc=corner, fontsize=9, framealpha=1)  # no line crosses it
    save(figure, out_png)
    return True


def _order(kind: tuple[str, ...]) -> tuple[bool, bool, str]:
    return kind[0] != "loss", kind[0] != "accuracy", kind[0]
