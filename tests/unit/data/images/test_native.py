# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np

from vit_jax.data.images.native import native_grid, native_grids, patchify

GOLDEN = Path(__file__).parents[3] / "golden" / "naflex" / "naflex_sizes.npz"


def test_sizes_are_the_published_ones() -> None:
    found = np.load(GOLDEN)
    for row, timm, siglip in zip(
        found["in_height_width_patch_limit"],
        found["out_timm_hw"],
        found["out_siglip2_hw"],
        strict=True,
    ):
        height, width, patch, length = row.tolist()
        grid = native_grid(height, width, (patch, patch), length)
        size = [n * patch for n in grid]
        assert size == siglip.tolist()
        assert size == timm.tolist() or timm[0] == -1


def test_no_image_is_enlarged_where_none_may_be() -> None:
    sizes = np.array([[100, 50], [31, 17], [1000, 1000], [1, 300]])
    grids = native_grids(sizes, (16, 16), 64, 1.0)
    assert grids[:2].tolist() == [[7, 4], [2, 2]]  # their own, in whole patches
    assert (grids.prod(axis=1) <= 64).all()
    assert grids[2].tolist() == [8, 8]


def test_patches_are_rows_of_pixels_with_the_channel_fastest() -> None:
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    rows = patchify(image, (2, 3))
    assert rows.shape == (4, 18)
    np.testing.assert_array_equal(rows[1], image[:2, 3:].reshape(-1))
    np.testing.assert_array_equal(rows[2], image[2:, :3].reshape(-1))
