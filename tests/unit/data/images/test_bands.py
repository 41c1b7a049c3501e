# SPDX-License-Identifier: Apache-2.0
"""Files of bands: what is chosen of them, in which order and dtype, and what is refused."""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest

from vit_jax.data.config import PixelType, Reading
from vit_jax.data.images import bands
from vit_jax.data.images.decode import decode

RNG = np.random.default_rng(0)
DEEP = RNG.integers(0, 5000, (6, 8, 5)).astype(np.uint16)


def reading(*names: str, dtype: PixelType = PixelType.UINT16) -> Reading:
    return Reading(bands=names, dtype=dtype)


def test_an_array_gives_its_bands_in_the_order_asked_for() -> None:
    file = bands.as_file(DEEP)
    np.testing.assert_array_equal(decode(file, 5, reading("all")), DEEP)
    np.testing.assert_array_equal(decode(file, 2, reading("3", "0")), DEEP[..., [3, 0]])
    assert decode(file, 0, reading("all")).dtype == np.uint16


def test_bands_may_come_first(subtests: pytest.Subtests) -> None:
    first = np.ascontiguousarray(np.moveaxis(DEEP, 2, 0))
    # By the number that is expected, else by the shorter axis.
    for channels in (5, 0):
        with subtests.test(channels=channels):
            found = decode(bands.as_file(first), channels, reading("all"))
            np.testing.assert_array_equal(found, DEEP)
    wide = RNG.integers(0, 9, (4, 8, 12)).astype(np.uint16)
    np.testing.assert_array_equal(decode(bands.as_file(wide), 12, reading("all")), wide)
    assert bands.facts(bands.as_file(first)[:128], ("all",)) == ("uint16", 5)


def test_a_png_keeps_16_bits_and_the_order_of_colours() -> None:
    image = RNG.integers(0, 65536, (6, 8, 3)).astype(np.uint16)
    file = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
    np.testing.assert_array_equal(decode(file, 3, reading("all")), image)


def test_a_folder_of_bands_is_read_by_their_names(tmp_path: Path) -> None:
    for band, name in enumerate(("B01", "S2A_x_B02", "B8A", "B10")):
        size = (3, 4) if name == "B8A" else (6, 8)
        (tmp_path / f"{name}.npy").write_bytes(bands.as_file(np.full(size, band, np.uint16)))
    (tmp_path / "labels.json").write_text("{}")
    packed = bands.packed_folder(tmp_path, ("B8A", "B02"))
    assert packed == bands.packed_folder(tmp_path, ("B8A", "B02"))  # no time is in it
    found = decode(packed, 2, reading("B8A", "B02"))
    assert found.shape == (6, 8, 2)  # the smaller band is brought to the larger one's size
    assert found[0, 0].tolist() == [2, 1]
    whole = io.BytesIO()
    np.savez(whole, B2=np.zeros((6, 8), np.uint16), B10=np.ones((6, 8), np.uint16))
    assert decode(whole.getvalue(), 2, reading("all"))[0, 0].tolist() == [0, 1]  # not B10 first
    with pytest.raises(ValueError, match=r"lacks the band B03; it has B01; B10; B8A; B02"):
        bands.packed_folder(tmp_path, ("B03",))


def test_what_is_not_as_asked_for_is_refused(subtests: pytest.Subtests) -> None:
    floats = np.zeros((4, 4, 2), np.float32)
    floats[0, 0, 0], floats[1, 1, 1] = np.nan, np.inf
    file = bands.as_file(DEEP)
    cases = (
        (file, 4, reading("all"), "has 5 bands, where the model takes 4; set model.channels=5"),
        (file, 5, reading("all", dtype=PixelType.UINT8), "set data.dtype=uint16"),
        (file, 1, reading("7"), "has 5 bands, and none of number 7"),
        (file, 1, reading("B02"), "5 bands without names"),
        (bands.as_file(floats), 2, reading("all", dtype=PixelType.FLOAT32), "2 of 32 values"),
        (file[:-1], 5, reading("all"), "cut off"),
        (b"", 5, reading("all"), "empty"),
        (b"\xff\xd8\xff", 3, reading("all"), "no file of bands"),
        (bands.as_file(np.zeros((2, 2, 2, 2), np.uint16)), 2, reading("all"), "of shape"),
    )
    for data, channels, rules, why in cases:
        with subtests.test(why), pytest.raises(ValueError, match=why):
            decode(data, channels, rules)


def test_other_numbers_become_float32() -> None:
    found = decode(
        bands.as_file(-DEEP.astype(np.int16)), 5, reading("all", dtype=PixelType.FLOAT32)
    )
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, -DEEP.astype(np.float32))


def test_a_picture_shows_the_chosen_bands_stretched() -> None:
    ramp = np.arange(101, dtype=np.uint16)[:, None, None] * np.array([1, 10, 100, 7], np.uint16)
    found = bands.picture(ramp, (2, 1, 0))
    assert found.shape == (101, 1, 3)
    assert found.dtype == np.uint8
    assert (found[..., 0] == found[..., 2]).all()  # each is stretched by itself
    assert (found[2, 0] == 0).all()
    assert (found[98, 0] == 255).all()
    assert found[50, 0, 0] == 128
    assert bands.picture(ramp[..., :2]).shape == (101, 1, 1)
    grey = RNG.integers(0, 256, (4, 4, 1)).astype(np.uint8)
    assert bands.picture(grey) is grey
    red = RNG.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    np.testing.assert_array_equal(bands.picture(red, (0, 0, 0)), red[..., [0, 0, 0]])
    four = RNG.integers(0, 256, (4, 4, 4)).astype(np.uint8)
    np.testing.assert_array_equal(bands.picture(four, (3, 2, 1)), four[..., [3, 2, 1]])
