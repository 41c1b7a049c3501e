# SPDX-License-Identifier: Apache-2.0
"""Views of an example: their shapes, and draws that depend on (seed, position, view) alone."""

from vit_jax.data import TransformConfig, View, one_view
from vit_jax.data.views import draws


def test_the_shape_of_a_view_counts_its_draws() -> None:
    once = View(transform=TransformConfig(), size=(8, 6), channels=3)
    assert once.shape == (8, 6, 3)
    several = View(transform=TransformConfig(), size=(8, 6), channels=1, count=4)
    assert several.shape == (4, 8, 6, 1)


def test_one_view_is_the_image() -> None:
    transform = TransformConfig(flip=True)
    (name, view), *others = one_view(transform, (4, 4), 3).items()
    assert (name, view.transform, view.count, others) == ("image", transform, 1, [])


def test_every_image_of_every_view_is_one_draw() -> None:
    large = View(transform=TransformConfig(), size=(8, 8), channels=3, count=2)
    small = View(transform=TransformConfig(), size=(4, 4), channels=3)
    found = draws({"large": large, "small": small}, exact=True)
    assert [(each.array, each.index, each.number) for each in found] == [
        ("large", 0, 0),
        ("large", 1, 1),
        ("small", None, 2),
    ]
    assert found[2].transform.image_size == (4, 4)
