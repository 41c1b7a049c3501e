# SPDX-License-Identifier: Apache-2.0
"""What each operation does to pixels, by its definition; tests/parity has timm's pixels."""

import numpy as np
import pytest

from vit_jax.data.augment.pillow import Resampling, from_pillow, operate, to_pillow

LEVELS = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
FILL = (124, 116, 104)


def run(name, image, argument, fill=FILL):
    return from_pillow(operate(name, to_pillow(image), argument, fill, Resampling.BICUBIC))


def _turned(y, x, angle):
    y, x = y - 99.5, x - 149.5
    sin, cos = np.sin(angle), np.cos(angle)
    return y * cos - x * sin + 99.5, x * cos + y * sin + 149.5


@pytest.mark.parametrize(
    "name, argument, moved",
    [
        ("TranslateX", 0.1, lambda y, x: (y, x - 30)),
        ("TranslateY", 0.1, lambda y, x: (y - 20, x)),
        ("ShearX", 0.2, lambda y, x: (y, x - 0.2 * y)),
        ("ShearY", -0.1, lambda y, x: (y + 0.1 * x, x)),
        ("Rotate", 20.0, lambda y, x: _turned(y, x, np.radians(20))),
    ],
)
def test_geometry(name, argument, moved):
    image = np.full((200, 300, 3), 10, np.uint8)
    image[98:103, 198:203] = 250
    out = run(name, image, argument)
    assert out.shape == image.shape
    spot = np.argwhere(out[..., 0] > 180).mean(0)
    np.testing.assert_allclose(spot, moved(100, 200), atol=0.7)
    assert (out == FILL).all(axis=-1).any()


def test_a_grey_image_and_one_number_fill_every_channel():
    grey = run("TranslateX", np.full((8, 8, 1), 10, np.uint8), 0.5, (77,))
    assert grey[0, :, 0].tolist() == [10] * 4 + [77] * 4
    rgb = run("TranslateX", np.full((8, 8, 3), 10, np.uint8), 0.5, (77,))
    assert (rgb[:, 4:] == 77).all()


def test_levels():
    levels = LEVELS.ravel().astype(int)

    def check(name, argument, expected):
        np.testing.assert_array_equal(run(name, LEVELS, argument).ravel(), expected)

    check("Invert", 0, 255 - levels)
    check("Posterize", 1, levels // 128 * 128)
    check("Posterize", 6, levels // 4 * 4)
    check("Posterize", 8, levels)
    check("Posterize", 0, 0 * levels)
    check("Posterize", -2, 0 * levels)
    check("Solarize", 26, np.where(levels < 26, levels, 255 - levels))
    check("Solarize", 256, levels)
    check("SolarizeAdd", 99, np.where(levels < 128, np.minimum(levels + 99, 255), levels))
    check("Brightness", 0.5, levels // 2)
    check("Color", 0.1, levels)
    check("AutoContrast", 0, levels)
    narrow = run("AutoContrast", LEVELS // 2 + 50, 0)
    assert (narrow.min(), narrow.max()) == (0, 255)


def test_enhancing_blends_with_grey_mean_black_and_smooth(photo):
    cut = photo[100:140, 200:240].astype(np.uint8)
    grey = run("Color", cut, 0.0)
    assert (grey[..., 0] == grey[..., 2]).all()
    assert np.ptp(run("Contrast", cut, 0.0)) == 0
    assert run("Brightness", cut, 0.0).max() == 0
    rough = np.abs(np.diff(cut.astype(int), axis=1)).mean()
    assert np.abs(np.diff(run("Sharpness", cut, 0.1).astype(int), axis=1)).mean() < rough
    for name in ("Color", "Contrast", "Brightness", "Sharpness"):
        np.testing.assert_array_equal(run(name, cut, 1.0), cut)


def test_a_colour_image_is_equalized_by_channel():
    levels = np.tile(LEVELS, (8, 8, 1))
    image = np.concatenate([levels // 2, levels // 2 + 100, levels], axis=-1)
    out = run("Equalize", image, 0)
    assert (out.reshape(-1, 3).max(0) > 250).all()
    with pytest.raises(ValueError, match="Cutout"):
        run("Cutout", image, 0)


@pytest.mark.parametrize("name, argument", [("TranslateX", 0.05), ("Rotate", 10.0)])
def test_pixels_are_resampled_as_asked(name, argument, photo):
    picture = to_pillow(photo[100:150, 200:250])
    nearest, cubic = (
        from_pillow(operate(name, picture, argument, (0,), getattr(Resampling, method)))
        for method in ("NEAREST", "BICUBIC")
    )
    levels = np.unique(photo[100:150, 200:250].reshape(-1, 3), axis=0)
    known = {tuple(pixel) for pixel in levels} | {(0, 0, 0)}
    assert {tuple(pixel) for pixel in nearest.reshape(-1, 3)} <= known  # none is made up
    assert not {tuple(pixel) for pixel in cubic.reshape(-1, 3)} <= known
