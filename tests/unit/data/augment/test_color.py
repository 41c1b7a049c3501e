# SPDX-License-Identifier: Apache-2.0
"""Colour jitter and 3-Augment: what is drawn, and what it does."""

import numpy as np

from vit_jax.data.augment import parse
from vit_jax.data.augment.pillow import jitter

RNG = np.random.default_rng


def test_jitter_changes_brightness_contrast_and_saturation():
    flat = np.full((4, 4, 3), 100, np.uint8)  # contrast and saturation leave it alone
    levels = {int(jitter(flat, 0.3, RNG(i))[0, 0, 0]) for i in range(200)}
    assert min(levels) in range(70, 75)
    assert max(levels) in range(126, 131)
    red = np.full((4, 4, 3), (200, 40, 40), np.uint8)
    spread = [
        np.ptp(out[0, 0]) / out.max() for out in (jitter(red, 0.5, RNG(i)) for i in range(40))
    ]
    assert max(spread) - min(spread) > 0.2
    stripes = np.tile(np.array([[60], [140]], np.uint8), (2, 4))[..., None]
    ratio = [np.ptp(out) / out.mean() for out in (jitter(stripes, 0.5, RNG(i)) for i in range(40))]
    assert max(ratio) - min(ratio) > 0.3
    np.testing.assert_array_equal(jitter(red, 0.0, RNG(0)), red)


def test_the_blur_has_a_standard_deviation_of_a_tenth_to_two_pixels():
    spot = np.zeros((31, 31, 1), np.uint8)
    spot[13:18, 13:18] = 255
    blur, rng = parse("3-augment").parts()["blur"], RNG(1)

    def variance(image):
        weights = image[..., 0].sum(0) / image.sum()
        x = np.arange(31)
        return (weights * x**2).sum() - (weights * x).sum() ** 2

    widths = [np.sqrt(max(variance(blur(spot, rng)) - variance(spot), 0)) for _ in range(300)]
    got = np.quantile(widths, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(got, [0.1, 0.575, 1.05, 1.525, 2.0], atol=0.2)
