# SPDX-License-Identifier: Apache-2.0
"""Heat maps from black to light yellow, through which the image shows."""

import numpy as np

from vit_jax.figures.contact_sheet import colors, overlay, spread


def test_colours_rise_in_lightness_from_black_to_yellow() -> None:
    scale = colors(np.linspace(-0.1, 1.1, 13)[None])[0]
    assert scale[0].tolist() == [0, 0, 4]
    assert scale[-1].tolist() == [252, 255, 164]
    lightness = scale.astype(float) @ [0.299, 0.587, 0.114]
    assert (np.diff(lightness) >= 0).all()


def test_values_are_spread_over_all_colours_but_equal_ones_are_cold() -> None:
    np.testing.assert_allclose(spread(np.array([2.0, 3.0, 6.0])), [0, 0.25, 1])
    np.testing.assert_array_equal(spread(np.full((2, 2), 7.0)), 0)


def test_the_map_covers_the_image_and_is_hot_where_it_was() -> None:
    image = np.full((16, 24, 1), 100, np.uint8)
    heat = np.zeros((2, 3))
    heat[1, 2] = 1.0
    found = overlay(image, heat).astype(int)
    assert found.shape == (16, 24, 3)
    assert found[-1, -1].sum() > found[0, 0].sum()
    assert found[-1, -1].tolist() == [222, 224, 151]  # 0.2 of grey 100, 0.8 of the hottest


def test_the_image_keeps_its_colours_where_the_map_is_cold() -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    heat = np.zeros((2, 3))
    heat[1, 2] = 1.0
    np.testing.assert_array_equal(overlay(image, heat)[:8, :8], image[:8, :8])
