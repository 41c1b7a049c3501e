# SPDX-License-Identifier: Apache-2.0
"""A teacher that cannot teach the student is refused in one line that names the field."""

import pytest

from vit_jax import models
from vit_jax.data import DataConfig, MixConfig
from vit_jax.distill import Distillation, TeacherConfig, check_unmixed
from vit_jax.distill.config import check
from vit_jax.errors import UserError

STUDENT = models.variant("vit_mu16", num_classes=7)


def teacher(**fields: object) -> TeacherConfig:
    model = models.variant("vit_mu16", num_classes=7)
    return TeacherConfig(**{"teacher": model, "weights": "ckpt:runs/x", **fields})


def test_a_teacher_of_the_same_classes_and_channels_fits() -> None:
    check(teacher(), STUDENT, DataConfig())


def test_classes_that_the_data_will_decide_are_no_fault() -> None:
    """A config that leaves them to the data has 0, whatever number stands in for them."""
    nine = teacher(teacher=models.variant("vit_mu16", num_classes=9))
    check(nine, models.variant("vit_mu16", num_classes=0), DataConfig())


@pytest.mark.parametrize(
    "fields, field",
    [
        (
            {"teacher": models.variant("vit_mu16", num_classes=8)},
            "teacher.num_classes=8 must be the student's, model.num_classes=7",
        ),
        (
            {"teacher": models.variant("vit_mu16", num_classes=7, channels=1)},
            "teacher.channels=1 must be the student's, model.channels=3",
        ),
        ({"weights": ""}, "weights is not set"),
        (
            {"mean": (0.5, 0.5)},
            r"mean=\(0.5, 0.5\) must hold 1 or 3 values, or none for",
        ),
        ({"weights": "npz:x", "ema": True}, "ema needs the checkpoint of a run; set objective"),
        ({"kind": Distillation.HARD, "temperature": 2.0}, "temperature has no effect on kind=hard"),
        *(
            (
                {"teacher": models.variant("vit_mu16", num_classes=7, **{key: 0.2})},
                f"teacher.{key}=0.2 has no effect on a teacher, which is run as evaluated; set it",
            )
            for key in ("dropout_rate", "attention_dropout_rate", "drop_path_rate")
        ),
    ],
)
def test_another_is_refused(fields: dict, field: str) -> None:
    with pytest.raises(UserError, match=rf"^objective\.distill\.{field}"):
        check(teacher(**fields), STUDENT, DataConfig())


def test_logits_of_mixed_images_are_not_cached() -> None:
    check_unmixed(DataConfig())
    with pytest.raises(UserError, match=r"set data\.mix\.mixup_alpha=0 and data\.erasing_prob=0$"):
        check_unmixed(DataConfig(mix=MixConfig(mixup_alpha=0.2), erasing_prob=0.25))
    for fields, setting in (
        ({"mix": MixConfig(mixup_alpha=0.1)}, "data.mix.mixup_alpha"),
        ({"mix": MixConfig(cutmix_alpha=0.1)}, "data.mix.cutmix_alpha"),
        ({"erasing_prob": 0.1}, "data.erasing_prob"),
    ):
        end = rf"not mixed and not erased: set {setting}=0, or objective\.distill\.cache=''$"
        with pytest.raises(UserError, match=end):
            check(teacher(cache="x"), STUDENT, DataConfig(**fields))


def test_a_class_head_must_learn() -> None:
    student = models.variant("deit_ti16_distilled", num_classes=7)
    check(teacher(), student, DataConfig())
    with pytest.raises(UserError, match=r"^objective\.distill\.alpha=1 would never train the cla"):
        check(teacher(alpha=1.0), student, DataConfig())


def test_a_teacher_of_several_sizes_of_patches_has_the_students() -> None:
    drawn = models.variant("flexivit_s", num_classes=7, drawn_patches=(48, 30))
    with pytest.raises(UserError, match=r"teacher\.drawn_patches=.* must be the student's, and"):
        check(teacher(teacher=drawn), STUDENT, DataConfig())
