# SPDX-License-Identifier: Apache-2.0
"""Figures without a display, with names that are no formulas."""

import io

import pytest
from PIL import Image

from vit_jax.figures import plots as figures


def test_panels_are_listed_row_by_row_and_drawn_without_a_display() -> None:
    figure, axes = figures.panels((4.0, 3.0), rows=2, columns=2, dpi=50)
    assert [
        (a.get_subplotspec().rowspan.start, a.get_subplotspec().colspan.start) for a in axes
    ] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    axes[0].plot([0, 1], [0, 1], label="a$b$c")
    png = figures.finish(figure, axes[0], "50$ and $x$")
    assert Image.open(io.BytesIO(png)).size == (200, 150)
    assert not axes[0].get_legend().get_texts()[0].get_parse_math()
    assert not axes[0].title.get_parse_math()


def test_a_legend_is_readable_on_dark_bars() -> None:
    figure, axes = figures.panels((2.0, 2.0), dpi=50)
    axes[0].bar([0], [1], width=1, color="black", label="accuracy")
    axes[0].set(xlim=(-0.5, 0.5), ylim=(0, 1))
    grey = Image.open(io.BytesIO(figures.finish(figure, axes[0], ""))).convert("L")
    box = axes[0].get_legend().get_window_extent()
    left, right, top = int(box.x0), int(box.x1), grey.height - int(box.y1)
    pixels = grey.crop((left, top, right, grey.height - int(box.y0))).tobytes()
    assert sum(p > 200 for p in pixels) > len(pixels) / 3


@pytest.mark.parametrize(
    "most, kept",
    [(9, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 4]), (3, [0, 2, 4]), (2, [1, 4]), (1, [4])],
)
def test_the_last_point_is_always_kept(most: int, kept: list[int]) -> None:
    assert figures.thin(list(range(5)), most) == kept


@pytest.mark.parametrize(
    "low, high, labels",
    [
        (0.55, 3.4, ["1", "2", "3"]),
        (0.02, 2.2, ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]),
        (800.0, 2e4, [r"$10^{3}$", r"$2\times10^{3}$", r"$5\times10^{3}$", r"$10^{4}$"]),
        (1e9, 1e13, [rf"$10^{{{power}}}$" for power in range(9, 14)]),
    ],
)
def test_logarithmic_axes_have_one_format_however_long(
    low: float, high: float, labels: list[str]
) -> None:
    figure, (axes,) = figures.panels((4.0, 3.0), dpi=50)
    axes.set(xscale="log", yscale="log", ylim=(low, high))
    figures.log_ticks(axes.yaxis, low, high)
    figure.canvas.draw()
    shown = [
        (at, text.get_text())
        for at, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if low <= at <= high
    ]
    assert set(labels) <= {text for _, text in shown}
    assert all(text == figures.tick(at) for at, text in shown)
    assert not any(text.get_text() for text in axes.get_yticklabels(minor=True))


def _picture(name: str) -> bytes:
    figure, (axes,) = figures.panels((3.0, 2.0))
    axes.bar([0, 1], [1, 2], label=name)
    axes.set_xticks([0, 1], [name, "b"])
    return figures.finish(figure, axes, name)


@pytest.mark.filterwarnings("error")
def test_names_in_any_script_are_drawn_or_said(capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    figures.fonts.cache_clear()
    own, other = (
        set(FT2Font(font_manager.findfont(name)).get_charmap())
        for name in ("DejaVu Sans", "STIXGeneral")
    )
    borrowed = chr(min(code for code in other - own if code > 0x2000))
    assert _picture(borrowed) != _picture("?")
    assert not capsys.readouterr().err  # another font has it
    assert _picture("\U0003ffff")  # no font has it
    assert "no font here has characters of names" in capsys.readouterr().err
    assert _picture("\U0003ffff")
    assert not capsys.readouterr().err, "a line is said once"
