# SPDX-License-Identifier: Apache-2.0
"""One of grey, solarized and blurred, each as likely."""

import numpy as np

from vit_jax.data.augment import three_augment

IMAGE = np.random.default_rng(0).integers(0, 256, (8, 9, 3), dtype=np.uint8)


def test_every_operation_is_drawn_and_nothing_else() -> None:
    policy = three_augment.read("3-augment", (0,))
    assert policy is not None
    rng = np.random.default_rng(1)
    seen = [policy(IMAGE, rng) for _ in range(60)]
    grey = [bool((x == x[..., :1]).all()) for x in seen]
    solarized = np.where(IMAGE < 128, IMAGE, 255 - IMAGE)
    inverted = [bool((x == solarized).all()) for x in seen]
    rest = 60 - sum(grey) - sum(inverted)
    assert min(sum(grey), sum(inverted), rest) >= 10


def test_blur_is_drawn_anew_and_smooths() -> None:
    blur = three_augment.ThreeAugment().parts()["blur"]
    first, second = (blur(IMAGE, np.random.default_rng(i)) for i in (1, 2))
    assert (first != second).any()
    assert first.astype(float).std() < IMAGE.astype(float).std()


def test_grey_images_stay_of_one_channel() -> None:
    grey = IMAGE[..., :1]
    for name, operation in three_augment.ThreeAugment().parts().items():
        assert operation(grey, np.random.default_rng(0)).shape == grey.shape, name


def test_other_texts_are_of_other_policies() -> None:
    assert three_augment.read("3-augmented", (0,)) is None
