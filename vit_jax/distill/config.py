# SPDX-License-Identifier: Apache-2.0
"""The settings of a teacher, and what cannot be learned from one."""

import contextlib
import dataclasses
import enum

from vit_jax import models
from vit_jax.data import DataConfig, check_units
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.settings import fields
from vit_jax.weights import heads

FIELD = "objective.distill"


class Distillation(enum.StrEnum):
    """How the teacher's logits enter the loss.

    HARD and SOFT are DeiT's (arXiv:2012.12877, its losses.py): the cross-entropy with the teacher's
    first guess, and the KL divergence at a temperature, times its square, over batch *and* classes.
    KL is Hinton's (arXiv:1503.02531), over the batch alone, as function matching uses it
    (arXiv:2106.05237): 1 / K of it is SOFT.
    """

    HARD = "hard"
    SOFT = "soft"
    KL = "kl"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class TeacherConfig:
    """A teacher, in evaluation mode, on the same mixed images: (1 - alpha) * loss + alpha * its.

    A student with a distillation token learns the labels with its class head and the teacher with
    the other; every other student learns both with its one head.

    Attributes:
        kind: the teacher's loss.
        alpha: its share; 1 does without the labels.
        temperature: both logits are divided by it; of no use to "hard".
        teacher: the teacher's model; of another image size the batch is resized for it. A FlexiViT
            with the student's `drawn_patches` has in every step the student's size of patches.
        weights: of the teacher, as `init.weights`.
        ema: take the moving average of the teacher's run.
        mean, std: what the teacher's input is normalised by; () is the student's.
        cache: directory of logits written by `vit_jax cache_teacher`, read instead of
            running the teacher; "" runs it in every step.
    """

    kind: Distillation = Distillation.HARD
    alpha: float = fields.value(0.5, above=0, most=1)
    temperature: float = fields.value(1.0, above=0)
    teacher: ModelConfig = dataclasses.field(default_factory=lambda: models.variant("regnety_16gf"))
    weights: str = fields.value("", free=True)  # what they are is compared by their digest
    ema: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = fields.value((), above=0)
    cache: str = ""


def check(cfg: TeacherConfig, model: ModelConfig, data: DataConfig) -> None:
    """Raise UserError for a teacher of other images or classes than the student's.

    A teacher whose weights name its classes may have more of them, in any order: they are found by
    name once the data are open (`teacher.read_weights`).
    """
    if cfg.kind is Distillation.HARD and cfg.temperature != 1:
        raise UserError(
            "objective.distill.temperature has no effect on kind=hard; leave it at 1.0",
            field="objective.distill.temperature",
        )
    if not cfg.weights and not cfg.cache:
        valid = f"npz:FILE, timm:FILE, hub:USER/NAME or ckpt:DIR (or {FIELD}.cache)"
        raise UserError(f"{FIELD}.weights is not set; give the teacher's: {valid}")
    if cfg.ema and not cfg.weights.startswith("ckpt:"):
        raise UserError(f"{FIELD}.ema needs the checkpoint of a run; set {FIELD}.weights=ckpt:DIR")
    try:
        models.create(cfg.teacher)
    except UserError as error:
        raise UserError(f"{FIELD}.teacher: {error}") from None
    for key in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        if rate := getattr(cfg.teacher, key, 0):
            why = "has no effect on a teacher, which is run as evaluated; set it to 0.0"
            raise UserError(f"{FIELD}.teacher.{key}={rate} {why}")
    for key in ("num_classes", "channels"):
        theirs, ours = getattr(cfg.teacher, key), getattr(model, key)
        # 0 classes are the data's, which are not open yet; more than the student's may have names.
        later = key == "num_classes" and (not ours or (theirs > ours and _names_classes(cfg)))
        if theirs != ours and not later:
            must = f"must be the student's, model.{key}={ours}; choose or train another teacher"
            raise UserError(f"{FIELD}.teacher.{key}={theirs} {must}")
    for key in ("mean", "std"):
        if len(values := getattr(cfg, key)) not in (0, 1, model.channels):
            must = f"must hold 1 or {model.channels} values, or none for the student's"
            raise UserError(f"{FIELD}.{key}={values} {must}")
        check_units(f"{FIELD}.{key}", values)
    draws = getattr(cfg.teacher, "drawn_patches", ())
    if draws and (cfg.cache or draws != getattr(model, "drawn_patches", ())):
        must = "must be the student's, and without a cache; set () for its model.patch throughout"
        raise UserError(f"{FIELD}.teacher.drawn_patches={draws} {must}")
    if cfg.alpha == 1 and getattr(model, "distilled", False):
        why = "would never train the class head of model.distilled; choose less, or distilled=False"
        raise UserError(f"{FIELD}.alpha=1 {why}")
    if cfg.cache:
        check_unmixed(data, f", or {FIELD}.cache=''")


def _names_classes(cfg: TeacherConfig) -> bool:
    with contextlib.suppress(UserError):
        return not cfg.weights or bool(heads.class_names(cfg.weights))
    return False


def of_student(cfg: TeacherConfig, num_classes: int) -> TeacherConfig:
    """Return the teacher with a head for the student's classes; the same one where it has that."""
    if num_classes in (0, cfg.teacher.num_classes):
        return cfg
    teacher = dataclasses.replace(cfg.teacher, num_classes=num_classes)
    return dataclasses.replace(cfg, teacher=teacher)


def check_unmixed(data: DataConfig, otherwise: str = "") -> None:
    """Raise UserError for mixed or erased images, whose logits cannot be cached."""
    found = {f"data.mix.{key}": getattr(data.mix, key) for key in ("mixup_alpha", "cutmix_alpha")}
    found["data.erasing_prob"] = data.erasing_prob
    if wanted := " and ".join(f"{key}=0" for key, value in found.items() if value):
        why = "cached logits are of images that are not mixed and not erased"
        raise UserError(f"{why}: set {wanted}{otherwise}")
