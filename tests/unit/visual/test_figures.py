# SPDX-License-Identifier: Apache-2.0
"""Figures without a display, with names that are no formulas."""

import io

import pytest
from PIL import Image

from vit_jax.visual import figures


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


@pytest.mark.parametrize(
    "most, kept",
    [(9, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 4]), (3, [0, 2, 4]), (2, [1, 4]), (1, [4])],
)
def test_the_last_point_is_always_kept(most: int, kept: list[int]) -> None:
    assert figures.thin(list(range(5)), most) == kept
