# SPDX-License-Identifier: Apache-2.0
"""Settings of the data that do not go together are refused by name."""

import dataclasses

import pytest

from tests.refusals import refused_by
from vit_jax.data import checks
from vit_jax.data.config import Crop, DataConfig, Partner, TransformConfig, ZoomSide
from vit_jax.errors import UserError


def _refused(fields: dict, fixed: bool = False) -> str:
    check = checks.check_fixed if fixed else checks.check_transform
    with pytest.raises(UserError) as error:
        check(dataclasses.replace(TransformConfig(), **fields), "t")
    return str(error.value)


def test_the_defaults_go_together() -> None:
    checks.check(DataConfig())
    checks.check_transform(TransformConfig(crop=Crop.RANDOM, pad=4))


def test_what_the_crop_never_reads_is_refused() -> None:
    assert "t.pad=4 must be 0 unless t.crop is 'random'" in _refused(
        {"crop": Crop.CENTER, "pad": 4}
    )
    assert "draws no box" in _refused({"crop": Crop.CENTER, "area": (0.1, 1.0)})
    assert "must be (low, high)" in _refused({"crop": Crop.INCEPTION, "area": (0.9, 0.1)})
    assert "t.zoom=(0.5, 1.0) has no effect with t.crop='center'" in _refused({"zoom": (0.5, 1.0)})
    assert "t.zoom_side=long has no effect" in _refused({"zoom_side": ZoomSide.LONG})
    assert "must be (low, high)" in _refused({"crop": Crop.SCALE_JITTER, "zoom": (2.0, 0.5)})


def test_a_wrong_policy_is_named_with_its_field() -> None:
    with refused_by("data.augment.parse", "t.auto_augment"):
        checks.check_transform(TransformConfig(auto_augment="nonsense"), "t")


def test_an_evaluation_draws_nothing() -> None:
    checks.check_fixed(TransformConfig(crop=Crop.CENTER, flip=False), "t")
    assert "draws at random" in _refused({"crop": Crop.CENTER, "flip": True}, fixed=True)


def test_repeated_images_are_not_mixed_with_themselves() -> None:
    cfg = DataConfig(repeats=2)
    cfg.mix.mixup_alpha, cfg.mix.partner = 0.8, Partner.PREVIOUS
    with pytest.raises(UserError, match=r"would mix copies; set data\.mix\.partner=reversed$"):
        checks.check(cfg)
    cfg.mix.partner = Partner.REVERSED
    checks.check(cfg)


def test_padding_is_below_the_short_side_of_the_resized_image() -> None:
    cfg = TransformConfig(crop=Crop.RANDOM, pad=31, crop_ratio=1.0)
    checks.check_pad(cfg, (32, 64))
    with pytest.raises(UserError, match=r"^transform\.pad=31 must be below 24, the short side"):
        checks.check_pad(cfg, (24, 64))


def test_mean_and_std_of_levels_are_refused_with_what_they_are_here() -> None:
    for field, values, ours in (
        ("mean", (123.675, 116.28, 103.53), "0.485,0.456,0.406"),
        ("std", (58.395, 57.12, 57.375), "0.229,0.224,0.225"),
        ("mean", (127.5,), "0.5"),
    ):
        with pytest.raises(UserError) as error:
            checks.check(dataclasses.replace(DataConfig(), **{field: values}))
        assert str(error.value).startswith(f"data.{field}=")
        assert str(error.value).endswith(f"divided by 255 it is {ours}")
    checks.check(DataConfig(mean=(0.0,), std=(1.0,)))
    checks.check(DataConfig(mean=(-0.5,), std=(0.5,)))


@pytest.mark.parametrize(
    ("field", "setting"),
    [
        ("data.mix.mixup_alpha", 0.8),
        ("data.mix.cutmix_alpha", 1.0),
        ("data.erasing_prob", 0.25),
        ("data.balance", 0.5),
        ("data.classes", (1, 2)),
        ("data.upright", False),
        ("data.transform.auto_augment", "rand-m9-mstd0.5-inc1"),
        ("data.transform.auto_augment", "randaug(2,10)"),
        ("data.transform.auto_augment", "autoaugment(cifar10)"),
        ("data.transform.crop", Crop.NATIVE),
    ],
)
def test_what_makes_no_sense_with_a_target_for_each_pixel(field: str, setting: object) -> None:
    cfg = DataConfig()
    checks.check_dense_data(cfg)
    node = cfg
    *groups, name = field.split(".")[1:]
    for group in groups:
        node = getattr(node, group)
    setattr(node, name, setting)
    with pytest.raises(UserError) as error:
        checks.check_dense_data(cfg)
    assert error.value.field == field
    assert str(error.value).startswith(field)
    assert "\n" not in str(error.value)
