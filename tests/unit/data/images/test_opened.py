# SPDX-License-Identifier: Apache-2.0
"""Open Pillow images: as their files, or refused with the same words."""

import numpy as np
import pytest
from PIL import Image

from tests.awkward import ALPHA, DEEP, GREY, PHOTO, encode, files, on_white, upright
from vit_jax.data.config import OLD_READING, Background, Reading
from vit_jax.data.images.decode import decode
from vit_jax.data.images.opened import pixels, turned

MODES = ["1", "L", "P", "RGB", "RGBX", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "PA", "RGBa", "La"]


@pytest.mark.parametrize("mode", MODES)
def test_images_of_every_mode_are_as_their_files(mode: str) -> None:
    photo = Image.fromarray(np.dstack([PHOTO, ALPHA]))
    plain = Image.fromarray(PHOTO)
    if mode == "PA":
        image = plain.convert("P").convert("PA")
        image.putalpha(Image.fromarray(ALPHA))
    elif mode in ("RGBa", "La"):
        image = photo.convert({"RGBa": "RGBA", "La": "LA"}[mode]).convert(mode)
    else:
        image = (photo if mode.endswith("A") else plain).convert(mode)
    if mode == "CMYK":
        file = encode(image, "TIFF")
    else:
        known = mode in ("1", "L", "P", "RGB", "RGBA", "LA")
        layered = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA"}
        file = encode(image if known else image.convert(layered.get(mode, "RGB")), "PNG")
    for rules in (Reading(), Reading(Background.BLACK)):
        np.testing.assert_array_equal(pixels(image, 3, rules), decode(file, 3, rules))
        grey = pixels(image, 1, rules).astype(int)
        assert np.abs(grey - decode(file, 1, rules)).max() <= 1


def test_deep_grey_keeps_its_upper_bits_and_what_has_no_white_is_refused() -> None:
    for order in ("<u2", ">u2"):
        found = pixels(Image.fromarray(DEEP.astype(order)), 1)
        np.testing.assert_array_equal(found[..., 0], GREY)
    for values, mode in ((GREY.astype(np.int32), "I"), (GREY.astype(np.float32), "F")):
        told = rf"^pixels without a known white \(mode {mode}\); save it as 8-bit PNG$"
        with pytest.raises(ValueError, match=told):
            pixels(Image.fromarray(values), 3)


def test_the_ground_is_the_one_that_is_asked_for() -> None:
    image = Image.fromarray(np.dstack([PHOTO, ALPHA]))
    for ground, level in ((Background.BLACK, 0), (Background.GRAY, 128), (Background.WHITE, 255)):
        wanted = PHOTO * (ALPHA[..., None] / 255) + level * (1 - ALPHA[..., None] / 255)
        assert np.abs(pixels(image, 3, Reading(ground)) - wanted).max() <= 1
        np.testing.assert_array_equal(pixels(image, 3, Reading(ground))[:, -1], PHOTO[:, -1])
    np.testing.assert_array_equal(pixels(image, 3, OLD_READING), PHOTO)
    assert np.abs(on_white(PHOTO, ALPHA).astype(int) - pixels(image, 3)).max() <= 1


def test_each_of_the_eight_turns_is_undone() -> None:
    for turn in range(1, 9):
        np.testing.assert_array_equal(turned(PHOTO, turn), upright(PHOTO, turn))


def test_awkward_files_are_of_all_the_turns() -> None:
    assert sum(kind == "orientation" for kind, _ in files()) > 40
