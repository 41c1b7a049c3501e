# SPDX-License-Identifier: Apache-2.0
"""Targets of the stored image come upright as the image does, masks, boxes and depth alike."""

import numpy as np
import pytest

from vit_jax.data.images.decode import turned
from vit_jax.data.sources.dense.raster import box_of
from vit_jax.data.sources.dense.shape import Shape, fitted
from vit_jax.data.targets import Target


def test_all_of_a_target_turns_with_its_image() -> None:
    mask = np.zeros((7, 11), bool)
    mask[1:3, 4:9] = True
    mask[3, 4] = True
    numbers = np.arange(77, dtype=np.float32).reshape(7, 11)
    boxes = np.array([box_of(mask)], np.float32)
    given = Target(size=(7, 11), masks=mask[None], boxes=boxes, depth=numbers)
    for turn in (5, 6, 7, 8):
        shape = Shape(11, 7, turn)
        assert shape.stored == (7, 11)
        found = fitted(given, shape, "x.jpg")
        assert found.size == (11, 7)
        assert found.masks is not None
        np.testing.assert_array_equal(found.masks[0], turned(mask[..., None], turn)[..., 0])
        np.testing.assert_array_equal(found.depth, turned(numbers[..., None], turn)[..., 0])
        assert found.boxes is not None
        assert tuple(found.boxes[0].tolist()) == box_of(found.masks[0])
    assert fitted(given, Shape(7, 11, 3), "x.jpg") is given  # what is shown is taken
    assert fitted(given, Shape(7, 11), "x.jpg") is given
    with pytest.raises(ValueError, match=r"x.jpg is 8x11, what is known of it 7x11"):
        fitted(given, Shape(8, 11), "x.jpg")
