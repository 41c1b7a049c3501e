# SPDX-License-Identifier: Apache-2.0
r"""A tenth of the digits' labels: what augmentation, convolutions and a teacher are worth there.

    python main.py --config=configs/tenth_digits.py:augmented --workdir=runs/tenth_augmented
    python main.py --config=configs/tenth_digits.py:teacher --workdir=runs/tenth_teacher
    python main.py --config=configs/tenth_digits.py:distilled --workdir=runs/tenth_distilled

(--config.objective.distill.weights=ckpt:DIR takes another teacher than runs/tenth_teacher.) Arms,
all of 900 steps of 48 images:
plain, convit_plain, teacher_plain: a ViT, a ConViT as large and a ResNet on the scans as they are.
augmented, convit, teacher: these with warps and mixup.
distilled: with a token for the teacher's distribution; distilled_hard: for its first guess (DeiT).
distilled_plain: one head for both, at temperature 4; no warps, no mixup.
unlabelled: learns from the teacher alone, on all 1,293 training scans without their labels.
Runs: plain, augmented, convit, convit_plain, teacher, teacher_plain, distilled, distilled_hard,
distilled_plain, unlabelled
Hardware: 2 CPU cores, half a minute to a minute.
Published: none; `python -m benchmarks.recipes` measures test top-1 (docs/reproduce.md).
"""

import dataclasses
from typing import NamedTuple

from vit_jax import (
    Config,
    Crop,
    Distillation,
    MixConfig,
    ModelConfig,
    TeacherConfig,
    TransformConfig,
    taught,
)
from vit_jax.recipes import choose, digits

WITH_TOKEN, CONVIT, TEACHER = digits.deit(), digits.convit(), digits.resnet()
VIT = dataclasses.replace(WITH_TOKEN, distilled=False)


class Arm(NamedTuple):
    """What sets a run apart; `distill` is without the teacher, which is one for all."""

    model: ModelConfig = VIT
    augmented: bool = True
    distill: TeacherConfig | None = None
    split: str = "train[:144]"


RUNS = {
    "plain": Arm(augmented=False),
    "augmented": Arm(),
    "convit": Arm(model=CONVIT),
    "convit_plain": Arm(model=CONVIT, augmented=False),
    "teacher": Arm(model=TEACHER),
    "teacher_plain": Arm(model=TEACHER, augmented=False),
    "distilled": Arm(model=WITH_TOKEN, distill=TeacherConfig(kind=Distillation.KL)),
    "distilled_hard": Arm(model=WITH_TOKEN, distill=TeacherConfig(kind=Distillation.HARD)),
    "distilled_plain": Arm(
        augmented=False, distill=TeacherConfig(kind=Distillation.KL, temperature=4.0)
    ),
    "unlabelled": Arm(distill=TeacherConfig(kind=Distillation.KL, alpha=1.0), split="train[:1293]"),
}


def get_config(name: str = "augmented") -> Config:
    arm = RUNS[choose("arm", name, RUNS)]
    config = digits.digits(dataclasses.replace(arm.model))
    config.data.train_split, config.data.batch_size = arm.split, 48
    if not arm.augmented:
        config.data.transform, config.data.mix = TransformConfig(crop=Crop.RESIZE), MixConfig()
    if arm.distill:
        teacher = dataclasses.replace(TEACHER)
        by = dataclasses.replace(arm.distill, teacher=teacher, weights="ckpt:runs/tenth_teacher")
        config.objective = taught(config.objective, by)
    config.optim.warmup, config.duration = "5%", "900 steps"
    config.evals["val"].every = config.checkpoint.every = "20%"
    return config
