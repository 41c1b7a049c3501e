# SPDX-License-Identifier: Apache-2.0
"""`visualize --augmentations` shows what the pipeline and the step really make."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.cli.visualize import main
from vit_jax.errors import DataError, UserError
from vit_jax.figures import contact_sheet
from vit_jax.figures.contact_sheet import Tile
from vit_jax.visual import augmentation_sheets

ROOT = Path(__file__).parents[3]
DIGITS = f"--config={ROOT}/configs/vit_mu_digits.py"


def run(*args: str) -> int:
    return main(["vit_jax visualize", "--augmentations", *args])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[Tile]]]:
    """Every sheet's rows by the first word of its title, instead of its PNG."""
    seen = {}

    def render(rows: list[list[Tile]], title: str) -> bytes:
        seen[title.split()[0].rstrip(":")] = rows
        return b""

    monkeypatch.setattr(augmentation_sheets, "render", render)
    return seen


def test_nothing_to_show_is_said_and_skipped(drawn, tmp_path, capsys):
    assert run(DIGITS, "--config.data.mix.mixup_alpha=0", f"--out={tmp_path}/new") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}/new/transform.png"
    assert lines[1].startswith("no operations.png: data.transform has neither auto_augment")
    assert lines[2].startswith("no batch.png: the step neither mixes")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["transform.png"]
    assert len(drawn["data.transform"]) == 4  # images of the training split
    assert {len(row) for row in drawn["data.transform"]} == {9}


ERRORS = {
    "two modes": (["--weights", DIGITS], "what to show? add one of: --augmentations"),
    "flag of another mode": ([DIGITS, "--heads=0"], "unknown flag '--heads'"),
    "no such file": ([DIGITS, "--images", "no.jpg"], "--images: no.jpg: No such file"),
    "no file": ([DIGITS, "--images", "--count=3"], "--images needs the names"),
    "no image": ([DIGITS, "--images", __file__], f"--images {__file__}: not a readable image"),
    "no directory": ([DIGITS, f"--out={__file__}/x"], f"--out={__file__}/x: Not a directory"),
    "many": ([DIGITS, "--images", *"abcdefghi"], "8 files at most, not 9"),
    "count": ([DIGITS, "--count=17"], "--count=17 must be at least 1 and at most 16"),
    "dataset": ([DIGITS, "--config.data.name=cifar10"], "take files instead: --images FILE"),
    "stray word": ([DIGITS, "--count=3", "a.jpg"], "unexpected argument 'a.jpg'"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_is_one_line(case, tmp_path, capsys, monkeypatch):
    # Told before anything is drawn, which takes long.
    monkeypatch.setattr(augmentation_sheets, "_transform_sheet", None)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    args, expected = ERRORS[case]
    status = DataError.status if case == "no image" else UserError.status
    assert run(f"--out={tmp_path}/new", *args) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert expected in line
    assert not (tmp_path / "new").exists()


def open_sheet(rows: list[list[Tile]]) -> np.ndarray:
    png = contact_sheet.render(rows, "a title")
    assert len(png) <= 840_000
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_small_images_are_enlarged_by_whole_pixels_and_every_tile_has_its_place():
    checks = (np.indices((8, 8)).sum(0)[..., None] % 2 * 255).astype(np.uint8)
    red = np.zeros((300, 150, 3), np.uint8)
    red[..., 0] = 255
    sheet = open_sheet([[Tile(checks, "one"), Tile(red, "two words")], [Tile(red, "three")]])
    is_red = (sheet == (255, 0, 0)).all(-1)
    assert is_red.sum() == 2 * 320 * 160  # the aspect is kept
    left = sheet[: len(sheet) // 2, 12:332, 0]  # without its frame
    runs = np.unique(np.diff(np.flatnonzero(np.diff(left[120].astype(int)))))
    assert runs.tolist() == [40]


def test_names_of_other_languages_are_drawn():
    font = contact_sheet._font(frozenset())
    box, *drawn = (bytes(font.getmask(letter)) for letter in "\uffffüλЖ")
    assert box not in drawn
    assert len(set(drawn)) == 3


def test_captions_break_at_spaces():
    font = contact_sheet._font(frozenset())
    lines = contact_sheet._wrap("1: Solarize 5, AutoContrast and more\nnext", 160, font)
    assert lines[-1] == "next"
    assert len(lines) > 2
    assert " ".join(lines) == "1: Solarize 5, AutoContrast and more next"
    assert max(font.getlength(line) for line in lines) <= 160
