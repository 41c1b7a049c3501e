# SPDX-License-Identifier: Apache-2.0
"""What a run minimises: the loss against labels, and the teacher's part in it."""

import dataclasses
import enum

from vit_jax import fields, models
from vit_jax.data import DataConfig
from vit_jax.data.config import MixConfig, is_on
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
    weights: str = fields.value("", free=True)  # what they are is compared by their digest
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
    if cfg.binarize and cfg.loss is Loss.SOFTMAX:
        raise UserError(
            "objective.binarize makes targets that are no distribution over the classes; set "
            "objective.loss=bce, or sigmoid"
        )
    if cfg.binarize and cfg.label_smoothing:
        raise UserError(
            f"objective.binarize with objective.label_smoothing={cfg.label_smoothing} would make "
            "every class a target, since smoothing leaves none at 0; set label_smoothing=0.0"
        )
    _validate_distill(cfg)


def check_effect(cfg: ObjectiveConfig, model: ModelConfig, mix: MixConfig) -> None:
    """Refuse what cannot act on this model and these images.

    Raises:
        UserError: naming the field.
    """
    if cfg.binarize and not is_on(mix):
        raise UserError(
            "objective.binarize has no effect on images that are not mixed; set "
            "data.mix.mixup_alpha or data.mix.cutmix_alpha, or leave it"
        )
    for name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        if not cfg.train_mode and getattr(model, name, 0):
            raise UserError(
                f"model.{name}={getattr(model, name)} has no effect with "
                f"objective.train_mode=False, which trains the model as evaluated; set it to 0.0"
            )


def _validate_distill(objective: ObjectiveConfig) -> None:
    cfg, plain = objective.distill, DistillConfig()
    if cfg.kind is Distillation.NONE:
        for field in dataclasses.fields(cfg):
            if getattr(cfg, field.name) != getattr(plain, field.name):
                raise UserError(
                    f"objective.distill.{field.name} has no effect without a teacher; set "
                    "objective.distill.kind to hard, soft or kl, or leave it"
                )
        return
    if not 0 < cfg.alpha <= 1:
        raise UserError(f"objective.distill.alpha={cfg.alpha} must be above 0 and at most 1")
    if cfg.alpha == 1 and (objective.label_smoothing or objective.binarize):
        raise UserError(
            "objective.label_smoothing and objective.binarize have no effect on a loss without "
            "labels (objective.distill.alpha=1); leave them"
        )
    if cfg.temperature <= 0:
        raise UserError(f"objective.distill.temperature={cfg.temperature} must be above 0")
    if cfg.kind is Distillation.HARD and cfg.temperature != 1:
        raise UserError("objective.distill.temperature has no effect on kind=hard; leave it at 1.0")
    if not cfg.weights and not cfg.cache:
        raise UserError(
            "objective.distill.weights is not set: whose guesses are to be learned? Give "
            "npz:FILE, timm:FILE or ckpt:DIR (or objective.distill.cache)"
        )
    if cfg.ema and not cfg.weights.startswith("ckpt:"):
        raise UserError(
            "objective.distill.ema chooses within a run's checkpoint; set "
            "objective.distill.weights=ckpt:DIR"
        )
    if any(value <= 0 for value in cfg.std):
        raise UserError(f"objective.distill.std={cfg.std} must be positive")


def check_teacher(cfg: DistillConfig, model: ModelConfig, data: DataConfig) -> None:
    """Refuse a teacher that does not see what the student sees, or speaks of other classes.

    Raises:
        UserError: naming the field.
    """
    if cfg.kind is Distillation.NONE:
        return
    field = "objective.distill"
    try:
        models.create(cfg.teacher)
    except UserError as error:
        raise UserError(f"{field}.teacher: {error}") from None
    for key in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        if getattr(cfg.teacher, key, 0):
            raise UserError(
                f"{field}.teacher.{key}={getattr(cfg.teacher, key)} has no effect on a teacher, "
                "which is run as evaluated; set it to 0.0"
            )
    for key in ("num_classes", "channels"):
        theirs, ours = getattr(cfg.teacher, key), getattr(model, key)
        if theirs != ours:
            raise UserError(
                f"{field}.teacher.{key}={theirs} must be the student's, model.{key}={ours}; "
                f"choose another teacher, or train one on the same data"
            )
    for key in ("mean", "std"):
        if len(getattr(cfg, key)) not in (0, 1, model.channels):
            raise UserError(
                f"{field}.{key}={getattr(cfg, key)} must be () (the student's), one value, or "
                f"one for each of {model.channels} channels"
            )
    if cfg.alpha == 1 and getattr(model, "distilled", False):
        raise UserError(
            f"{field}.alpha=1 would never train the class head of model.distilled; choose less, or "
            "a model without a distillation token"
        )
    if cfg.cache:
        check_unmixed(data, f", or {field}.cache=''")


def check_unmixed(data: DataConfig, otherwise: str = "") -> None:
    """Refuse images of which no logits are cached, since others are in them.

    Raises:
        UserError: naming the fields, and what can be done `otherwise`.
    """
    found = {
        "data.mix.mixup_alpha": data.mix.mixup_alpha,
        "data.mix.cutmix_alpha": data.mix.cutmix_alpha,
        "data.erasing_prob": data.erasing_prob,
    }
    wanted = [f"{key}=0" for key, value in found.items() if value]
    if wanted:
        raise UserError(
            "cached logits are of images that are not mixed and not erased: set "
            f"{' and '.join(wanted)}{otherwise}"
        )
