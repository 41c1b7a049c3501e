# SPDX-License-Identifier: Apache-2.0
"""Sheets of small images: what is chosen, how it is laid out, how large the file is."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from tests.refusals import refused_by
from vit_jax.figures.contact_sheet import Tile, render, spaced, wrapped, write


def test_choices_are_spaced_evenly_with_both_ends() -> None:
    assert spaced(10, 4) == [0, 3, 6, 9]
    assert spaced(3, 9) == [0, 1, 2]
    assert spaced(1, 5) == [0]


def test_tiles_are_broken_into_rows() -> None:
    tiles = [Tile(np.zeros((1, 1, 1), np.uint8), str(i)) for i in range(5)]
    assert [[t.caption for t in row] for row in wrapped(tiles, 2)] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
    ]


def test_a_name_longer_than_its_tile_is_broken_and_covers_no_other() -> None:
    grey = np.full((64, 64, 1), 200, np.uint8)
    long, short = Tile(grey, "1f469-200d-1f692-" * 9), Tile(grey, "b")
    alone, beside = (
        np.asarray(Image.open(io.BytesIO(render([row], "t"))).convert("L"))
        for row in ([Tile(grey, "a"), short], [long, short])
    )
    assert beside.shape[0] > alone.shape[0]
    assert beside.shape[1] == alone.shape[1]
    # The second tile's caption is what it is beside a short one.
    right = alone.shape[1] // 2 + 6
    rows = alone.shape[0] - 30
    np.testing.assert_array_equal(beside[rows - 20 : rows, right:], alone[rows - 20 : rows, right:])


def test_pixels_are_enlarged_by_whole_numbers_in_their_colours() -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    png = render([[Tile(red, "red"), Tile(np.full((8, 8, 1), 90, np.uint8), "grey")]], "title")
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    exactly_red = (image == [255, 0, 0]).all(axis=-1)
    assert exactly_red.sum() == 320 * 320
    assert image.shape[1] == 2 * 332 + 12


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    assert write(tmp_path / "new", "a.png", b"x") == str(tmp_path / "new" / "a.png")
    with refused_by("storage.files.refused", "--out"):
        write(tmp_path / "new" / "a.png", "b.png", b"x")


def test_captions_in_other_scripts_are_drawn_by_a_font_that_has_them() -> None:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    own, other = (
        set(FT2Font(font_manager.findfont(name)).get_charmap())
        for name in ("DejaVu Sans", "STIXGeneral")
    )
    borrowed = [chr(code) for code in sorted(other - own) if 0x2000 < code < 0xE000]
    one, two = borrowed[:2]
    grey = np.zeros((4, 4, 1), np.uint8)
    assert render([[Tile(grey, one)]], "a") != render([[Tile(grey, two)]], "a"), "no two boxes"
