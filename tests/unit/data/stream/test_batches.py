# SPDX-License-Identifier: Apache-2.0
"""Decoded images stay in memory where all of a data set fit."""

import numpy as np

from vit_jax.data.config import TransformConfig
from vit_jax.data.stream.batches import PixelCache
from vit_jax.data.stream.transform import Transform


class Halving(Transform):
    """Decodes to 4x4 pixels; its view is the top left quarter."""

    def load(self, data: bytes, name=str) -> np.ndarray:
        return np.full((4, 4, 3), data[0], np.uint8)

    def view(self, image: np.ndarray) -> np.ndarray:
        return image[:2, :2]


SETTINGS = {"cfg": TransformConfig(), "image_size": (2, 2), "channels": 3, "exact": True}


def test_the_view_is_kept_where_it_fits() -> None:
    cache = PixelCache(10, [Halving(**SETTINGS)], max_bytes=10 * 12)  # bytes of ten views
    assert cache.get(3) is None
    first = cache.load(3, b"\x07", {"label": 1})
    again = cache.get(3)
    assert again is not None
    (image,) = again.images
    assert (again.viewed, again.fields, image.shape) == (True, {"label": 1}, (2, 2, 3))
    np.testing.assert_array_equal(image, first.images[0])
    assert image.base is None, "the whole image would stay in memory"
    assert not image.flags.writeable


def test_nothing_is_kept_of_a_data_set_that_does_not_fit() -> None:
    cache = PixelCache(10, [Halving(**SETTINGS)], max_bytes=10 * 12 - 1)
    assert cache.load(3, b"\x07", {"label": 1}).viewed
    assert cache.get(3) is None


def test_the_decoded_image_is_kept_where_the_view_is_no_array_of_pixels() -> None:
    class Undecoded(Halving):
        def view(self, image: np.ndarray) -> bytes:
            return image.tobytes()

    cache = PixelCache(1, [Undecoded(**SETTINGS)], max_bytes=48)
    cache.load(0, b"\x07", {})
    kept = cache.get(0)
    assert kept is not None
    assert (kept.viewed, kept.images[0].shape) == (False, (4, 4, 3))
