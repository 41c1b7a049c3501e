# SPDX-License-Identifier: Apache-2.0
import numpy as np

from vit_jax.data.images.native import native_grids
from vit_jax.data.stream.packing import pack, slots


def test_every_image_has_a_place_of_its_own() -> None:
    rng = np.random.default_rng(0)
    for rows, length in ((12, 256), (3, 64), (1, 128)):
        sizes = rng.integers(16, 200, (24, 2))
        found = pack(sizes, (16, 16), rows, length)
        areas = found.grids.prod(axis=1)
        assert found.images.shape == (rows, slots(24, rows, length))
        assert sorted(found.images[found.images >= 0].tolist()) == list(range(24))
        for images, offsets in zip(found.images, found.offsets, strict=True):
            held = images[images >= 0]
            ends = np.cumsum(areas[held])
            assert offsets[: len(held)].tolist() == [0, *ends[:-1].tolist()][: len(held)]
            assert ends.max(initial=0) <= length
        np.testing.assert_array_equal(found.images, pack(sizes, (16, 16), rows, length).images)


def test_images_keep_their_sizes_where_there_is_room_and_else_the_largest_shrink() -> None:
    sizes = np.array([[64, 64], [16, 32], [160, 160], [16, 16]])
    roomy, tight = pack(sizes, (16, 16), 2, 128), pack(sizes, (16, 16), 2, 16)
    assert roomy.grids.tolist() == [[4, 4], [1, 2], [10, 10], [1, 1]]
    assert tight.grids[[1, 3]].tolist() == [[1, 2], [1, 1]]  # of the small ones none
    areas = tight.grids.prod(axis=1)
    assert areas.sum() <= 32
    limits = [
        limit
        for limit in range(1, 17)
        if (grids := native_grids(sizes, (16, 16), limit, 1.0)) is not None
        and (grids == tight.grids).all()
    ]
    assert max(areas) in limits
