# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.refusals import RANGE, refused_as, refused_by
from vit_jax import config as run_config
from vit_jax.data import (
    Crop,
    DataConfig,
    MixConfig,
    Partner,
    TransformConfig,
    check,
    check_transform,
)
from vit_jax.data.checks import check_pad
from vit_jax.data.config import cover_size, crop_ranges, has_affine, is_random
from vit_jax.data.stream.transform import Transform
from vit_jax.models import ViTConfig


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"crop_ratio": 0.0}, (RANGE, "transform.crop_ratio")),
        ({"crop": Crop.INCEPTION, "area": (0.0, 1.0)}, (RANGE, "transform.area")),
        (
            {"crop": Crop.INCEPTION, "area": (0.5, 0.1)},
            ("data.checks.check_transform", "transform.area"),
        ),
        ({"crop": Crop.RANDOM_RESIZED, "aspect": (1.0,)}, (RANGE, "transform.aspect")),
        ({"crop": Crop.CENTER, "area": (0.1, 1.0)}, ("data.checks.check_transform", "")),
        ({"degrees": -1.0}, (RANGE, "transform.degrees")),
        ({"translate": (1.5, 0.0)}, (RANGE, "transform.translate")),
        ({"scale": (0.0, 1.0)}, (RANGE, "transform.scale")),
        ({"shear": 90.0}, (RANGE, "transform.shear")),
        (
            {"auto_augment": "randaug(0,10)"},
            ("data.augment.randaug.read", "transform.auto_augment"),
        ),
        ({"color_jitter": -0.1}, (RANGE, "transform.color_jitter")),
        ({"color_jitter": 1.1}, (RANGE, "transform.color_jitter")),
        ({"crop": Crop.RANDOM, "pad": -1}, (RANGE, "transform.pad")),
        ({"crop": Crop.SQUASH_RANDOM, "pad": 4}, ("data.checks.check_transform", "transform.pad")),
    ],
)
def test_nonsense_in_a_transform_is_one_line_that_names_the_field(fields, message):
    with refused_as(message) as caught:
        check_transform(TransformConfig(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": -1},
        {"num_threads": -1},
        {"prefetch": 0},
        {"mix": MixConfig(mixup_alpha=-0.1)},
        {"repeats": 0},
        {"max_broken": -1},
        {"mean": (0.5, 0.5)},
        {"std": (0.0,)},
    ],
)
def test_nonsense_in_the_data_config_names_the_field(fields):
    with refused_by(RANGE) as caught:
        check(DataConfig(**fields))
    assert caught.value.field.startswith(f"data.{next(iter(fields))}")


def test_repeats_are_not_mixed_with_themselves():
    for mixed in ({"mixup_alpha": 0.8}, {"cutmix_alpha": 1.0}):
        with refused_by("data.checks.check", "data.repeats") as caught:
            check(DataConfig(repeats=3, mix=MixConfig(**mixed)))
        assert "\n" not in str(caught.value)
        check(DataConfig(repeats=3, mix=MixConfig(partner=Partner.REVERSED, **mixed)))
        check(DataConfig(mix=MixConfig(**mixed)))
    check(DataConfig(repeats=3))


def test_padding_must_be_smaller_than_the_resized_image():
    cfg = TransformConfig(crop=Crop.RANDOM, pad=9, crop_ratio=0.8)
    check_pad(cfg, (8, 16))  # 10 by 20 once resized
    cfg.pad = 10
    with refused_by("data.checks.check_pad", "transform.pad"):
        check_pad(cfg, (8, 16))
    with refused_by("data.checks.check_pad", "transform.pad"):
        Transform(cfg=cfg, image_size=(16, 8), channels=1, exact=False)
    model = ViTConfig(image_size=(8,), patch=(4,))
    with refused_by("data.checks.check_pad", "data.transform.pad"):
        run_config.check(run_config.Config(model=model, data=DataConfig(transform=cfg)))


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
        {"crop": Crop.RANDOM},
        {"crop": Crop.SQUASH_RANDOM},
        {"crop": Crop.RANDOM_RESIZED},
        {"color_jitter": 0.1},
        {"degrees": 5.0},
        {"shear": 5.0},
    ):
        cfg = TransformConfig(**fields)
        assert is_random(cfg), fields
        assert has_affine(cfg) == bool(fields.keys() & {"scale", "translate", "degrees", "shear"})


def test_the_resized_image_is_rounded_down() -> None:
    # timm's math.floor(img_size / crop_pct), DeiT's and Swin's int(256 / 224 * size)
    assert cover_size((224, 384), 0.9) == (248, 426)
    assert cover_size((224, 128), 0.875) == (256, 146)
    assert cover_size((128, 128), 0.8) == (160, 160)
    assert cover_size((32, 31), 1.0) == (32, 31)
