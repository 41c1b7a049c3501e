# SPDX-License-Identifier: Apache-2.0
"""The side of an image of which the model sees a share."""

import pytest

from vit_jax.data.resize import cover_size


@pytest.mark.parametrize(
    "size, ratio, found",
    [
        ((224, 224), 0.875, (256, 256)),
        ((224, 224), 0.9, (248, 248)),  # 248.9 rounded down
        ((128, 128), 0.8, (160, 160)),
        ((384, 224), 1.0, (384, 224)),
    ],
)
def test_the_resized_image_is_rounded_down(
    size: tuple[int, int], ratio: float, found: tuple[int, int]
) -> None:
    assert cover_size(size, ratio) == found
