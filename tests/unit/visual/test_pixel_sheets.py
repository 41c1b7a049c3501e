# SPDX-License-Identifier: Apache-2.0
"""Sheets of masks: a colour for each class, what is ignored in white."""

import io

import numpy as np
from PIL import Image

from vit_jax.inference.dense_probing import Shown
from vit_jax.visual import pixel_sheets


def test_classes_have_colours_of_their_own() -> None:
    colours = pixel_sheets.palette(150)
    assert colours.shape == (256, 3)
    assert len({tuple(colour) for colour in colours[:150].tolist()}) > 140
    assert colours[255].tolist() == [255, 255, 255]
    assert pixel_sheets.palette(3)[:3].tolist() == colours[:3].tolist()


def test_a_sheet_shows_image_truth_and_predictions() -> None:
    image = np.full((20, 30, 1), 128, np.uint8)
    truth, guess = np.zeros((20, 30), np.uint8), np.ones((20, 30), np.uint8)
    truth[:5] = 255
    shown = [Shown(image, truth, {"knn": guess, "linear": truth})] * 2
    png = pixel_sheets.draw_masks(shown, ["sky", "sea"], ["knn: 1 %", "linear: 2 %"], "masks")
    with Image.open(io.BytesIO(png)) as sheet:
        seen = {colour for _, colour in sheet.convert("RGB").getcolors(sheet.width * sheet.height)}
    colours = pixel_sheets.palette(2)
    assert {tuple(colours[0].tolist()), tuple(colours[1].tolist()), (128, 128, 128)} <= seen
