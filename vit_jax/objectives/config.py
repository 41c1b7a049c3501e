# SPDX-License-Identifier: Apache-2.0
"""What a run minimises: the loss against labels, and the teacher's part in it."""

import dataclasses
import enum

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.losses import Loss
from vit_jax.models import ModelConfig


class Distillation(enum.StrEnum):
    """How the teacher's logits enter the loss.

    HARD and SOFT are DeiT's (arXiv:2012.12877, its losses.py): the cross-entropy with the teacher's
    first guess, and the KL divergence at a temperature, times its square, over batch *and* classes.
    KL is Hinton's (arXiv:1503.02531), over the batch alone, as function matching uses it
    (arXiv:2106.05237): 1 / K of it is SOFT.
    """

    NONE = "none"
    HARD = "hard"
    SOFT = "soft"
    KL = "kl"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DistillConfig:
    """A teacher, in evaluation mode, on the same mixed images: (1 - alpha) * loss + alpha * its.

    A student with a distillation token learns the labels with its class head and the teacher with
    the other; every other student does both with its one head.

    Attributes:
        kind: the teacher's loss; "none" trains without one.
        alpha: its share; 1 does without the labels.
        temperature: both logits are divided by it; of no use to "hard".
        teacher: the teacher's model; of another image size the batch is resized for it.
        weights: of the teacher, as `init.weights`.
        ema: take the moving average of the teacher's run.
        mean, std: what the teacher's input is normalised by; () is the student's.
        cache: directory of logits written by `python -m vit_jax cache_teacher`, read instead of
            running the teacher; "" runs it in every step.
    """

    kind: Distillation = Distillation.NONE
    alpha: float = 0.5
    temperature: float = 1.0
    teacher: ModelConfig = dataclasses.field(default_factory=lambda: models.variant("regnety_16gf"))
    weights: str = ""
    ema: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    cache: str = ""


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ObjectiveConfig:
    """Loss and target settings.

    Attributes:
        loss: softmax for one label per image, sigmoid for several (or as AugReg trains on 21k), bce
            as DeiT III.
        label_smoothing: share of the target spread evenly over all classes.
        binarize: count every positive target of a mixed image as 1 (DeiT III's `targets.gt(0)`).
        train_mode: run the model as for training, with dropout, stochastic depth and BatchNorm of
            the batch; off, DeiT's fine-tuning trains it as it is evaluated.
        distill: a teacher.
    """

    loss: Loss = Loss.SOFTMAX
    label_smoothing: float = 0.0
    binarize: bool = False
    train_mode: bool = True
    distill: DistillConfig = dataclasses.field(default_factory=DistillConfig)


def validate(cfg: ObjectiveConfig) -> None:
    """Refuse values out of range.

    Raises:
        UserError: naming the field.
    """
    if not 0 <= cfg.label_smoothing < 1:
        raise UserError(f"objective.label_smoothing={cfg.label_smoothing} must be in [0, 1)")
