# SPDX-License-Identifier: Apache-2.0
"""An evaluation on training images is found by how the splits are written."""

from vit_jax.data.sources.partition import overlaps

SIZES = {"train": 100, "val": 10}


def test_slices_of_one_split_that_meet() -> None:
    for one, two, meet in (
        ("train", "train", True),
        ("val", "train", False),
        ("train[90%:]", "train[:90%]", False),
        ("train[90%:]", "train[:95%]", True),
        ("train[-10:]", "train[:-10]", False),
        ("train[-10:]", "train[:95%]", True),
        ("val", "train+validation", True),
        ("whole", "train", True),
        ("whole", "val[:10%]", True),
        ("nonsense[", "train", False),
    ):
        assert overlaps(one, two, SIZES) is meet, (one, two)
        assert overlaps(two, one, SIZES) is meet, (one, two)
    assert not overlaps("train[1293:]", "train[:1293]", {})
    assert overlaps("train[1290:]", "train[:1293]", {})
