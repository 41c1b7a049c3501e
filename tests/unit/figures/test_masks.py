# SPDX-License-Identifier: Apache-2.0
"""Colours of classes, areas and boxes over an image."""

import numpy as np

from vit_jax.figures import masks


def test_classes_have_colours_of_their_own() -> None:
    colours = masks.palette(150)
    assert len({tuple(row) for row in colours[:150].tolist()}) > 140
    assert colours[masks.NONE].tolist() == [255, 255, 255]
    assert (colours[150:] == 255).all()
    assert colours[9].tolist() == list(masks.colour(9))


def test_areas_lie_over_the_image() -> None:
    image = np.full((8, 8, 1), 200, np.uint8)
    numbers = np.full((8, 8), -1)
    numbers[:, 4:] = 1
    found = masks.over(image, numbers)
    assert (found[:, :4] == 200).all()
    assert np.ptp(found[:, 5:].reshape(-1, 3), axis=0).tolist() == [0, 0, 0]
    assert (found[0, 4] < found[0, 5]).any()  # the edge is darker
    own = masks.over(image, numbers, [(0, 0, 0), (255, 0, 0)])
    assert own[0, 6, 0] > own[0, 6, 1]
    floats = np.linspace(-3, 5, 64).reshape(8, 8, 1)
    assert masks.as_rgb(floats).reshape(-1, 3)[[0, -1]].tolist() == [[0] * 3, [255] * 3]


def test_boxes_are_drawn_inside_the_image() -> None:
    image = np.zeros((10, 12, 3), np.uint8)
    found = masks.framed(
        image, np.array([[2.0, 1, 9, 8], [-5, -5, 40, 40]]), [(9, 9, 9), (1, 1, 1)]
    )
    assert not image.any()
    assert found[1, 2:9, 0].tolist() == [9] * 7 or found[1, 2, 0] in (1, 9)
    assert found[4, 4].tolist() == [0, 0, 0]
    assert found[0, 0].tolist() == [1, 1, 1]
    assert found[9, 11].tolist() == [1, 1, 1]
