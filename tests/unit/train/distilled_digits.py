# SPDX-License-Identifier: Apache-2.0
"""A config with every part of a recipe on: a tiny ViT learns digits from a tiny RegNet."""

import dataclasses

from tests.unit.models.tiny import TINY
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Partner, TransformConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.evals import ClassifyEval
from vit_jax.objectives import DistillConfig
from vit_jax.optim import OptimConfig

STUDENT = dataclasses.replace(
    TINY["deit"], depth=1, num_classes=10, channels=1, dropout_rate=0.1, drop_path_rate=0.1
)
TEACHER = dataclasses.replace(
    TINY["regnet"], depth=1, num_classes=10, channels=1, zero_init_last=False
)


def get_config() -> Config:
    """Return the config; `objective.distill.weights` is still to be set."""
    plain = TransformConfig(crop=Crop.RESIZE)
    return Config(
        model=STUDENT,
        data=DataConfig(
            name="digits",
            train_split="train[:64]",
            batch_size=16,
            transform=TransformConfig(crop=Crop.RESIZE, degrees=15.0, auto_augment="randaug(1,5)"),
            repeats=2,
            mix=MixConfig(mixup_alpha=0.8, cutmix_alpha=1.0, partner=Partner.REVERSED),
            erasing_prob=0.25,
        ),
        optim=OptimConfig(lr=1e-3, weight_decay=0.05, warmup="5 steps"),
        objective=DistillConfig(
            label_smoothing=0.1,
            distill=TeacherConfig(kind=Distillation.HARD, teacher=TEACHER, weights="ckpt:?"),
        ),
        duration="40 steps",
        ema_decay=0.9,
        evals={"val": ClassifyEval(split="test[:40]", every="20 steps", transform=plain)},
        checkpoint=CheckpointConfig(every="5 steps", keep_best=0),
        log=LogConfig(every="1 steps", tensorboard=False),
    )
