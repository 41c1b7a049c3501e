# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig, check, check_transform
from vit_jax.data.config import crop_ranges, has_affine, is_random
from vit_jax.errors import UserError


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"crop_ratio": 0.0}, "crop_ratio"),
        ({"crop": Crop.INCEPTION, "area": (0.0, 1.0)}, "area"),
        ({"crop": Crop.INCEPTION, "area": (0.5, 0.1)}, "area"),
        ({"crop": Crop.RANDOM_RESIZED, "aspect": (1.0,)}, "aspect"),
        ({"crop": Crop.CENTER, "area": (0.1, 1.0)}, "draws no box"),
        ({"degrees": -1.0}, "degrees"),
        ({"translate": (1.5, 0.0)}, "translate"),
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"shear": 90.0}, "shear"),
        ({"auto_augment": "randaug(0,10)"}, "auto_augment"),
    ],
)
def test_nonsense_in_a_transform_is_one_line_that_names_the_field(fields, message):
    with pytest.raises(UserError, match=message) as caught:
        check_transform(TransformConfig(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 0},
        {"num_threads": -1},
        {"prefetch": 0},
        {"mix": MixConfig(mixup_alpha=-0.1)},
        {"mean": (0.5, 0.5)},
        {"std": (0.0,)},
    ],
)
def test_nonsense_in_the_data_config_names_the_field(fields):
    with pytest.raises(UserError, match=f"data.{next(iter(fields))}"):
        check(DataConfig(**fields))


def test_defaults_are_valid_and_hashable():
    check(DataConfig())
    assert hash(DataConfig()) == hash(DataConfig())


def test_each_random_crop_has_its_own_published_ranges():
    assert crop_ranges(TransformConfig(crop=Crop.INCEPTION)) == ((0.05, 1.0), (0.75, 1.33))
    assert crop_ranges(TransformConfig(crop=Crop.RANDOM_RESIZED))[0] == (0.08, 1.0)
    own = TransformConfig(crop=Crop.INCEPTION, area=(0.2, 0.9))
    assert crop_ranges(own) == ((0.2, 0.9), (0.75, 1.33))


def test_what_counts_as_random():
    assert not is_random(TransformConfig())
    assert not has_affine(TransformConfig())
    for fields in (
        {"flip": True},
        {"crop": Crop.INCEPTION},
        {"scale": (0.9, 1.1)},
        {"translate": (0.0, 0.1)},
        {"auto_augment": "randaug(2,10)"},
    ):
        assert is_random(TransformConfig(**fields)), fields
