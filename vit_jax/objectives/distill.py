# SPDX-License-Identifier: Apache-2.0
"""Distillation: the labels' loss and a teacher's, on the same mixed images (arXiv:2012.12877)."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax import distill, models, trees
from vit_jax.cost.flops import count
from vit_jax.data import DataConfig, Source
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.distill.cache import INDEX, LOGITS, REST, TOP, dense
from vit_jax.distill.teacher import Teacher, make_teacher
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, patch_sizes
from vit_jax.models.losses import example_loss
from vit_jax.objectives.base import Aux, Batch, Context, Extras, Objective, ObjectiveConfig
from vit_jax.objectives.supervised import Supervised, SupervisedConfig, top1


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DistillConfig(SupervisedConfig):
    """Learn from labels and from a teacher.

    Attributes:
        distill: the teacher, and its share of the loss.
    """

    takes_unknown: ClassVar[bool] = False  # `loss` counts every label

    distill: TeacherConfig = dataclasses.field(default_factory=TeacherConfig)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for values that exclude each other, or a teacher that does not fit."""
        SupervisedConfig.check(self, model, data)
        if self.distill.alpha == 1 and (self.label_smoothing or self.binarize):
            fields = "objective.label_smoothing and objective.binarize"
            raise UserError(f"{fields} have no effect without labels (objective.distill.alpha=1)")
        distill.check(self.distill, model, data)


def taught(objective: ObjectiveConfig, teacher: TeacherConfig) -> DistillConfig:
    """Add a teacher to supervised training.

    Raises UserError: another objective than `SupervisedConfig`.
    """
    if not isinstance(objective, SupervisedConfig):
        raise UserError(f"{type(objective).__name__} learns no classes, as a teacher needs")
    shared = {f.name: getattr(objective, f.name) for f in dataclasses.fields(SupervisedConfig)}
    return DistillConfig(**shared, distill=teacher)


@dataclasses.dataclass(frozen=True)
class Distill(Supervised):
    """The objective of training with a teacher: (1 - alpha) * supervised + alpha * distillation.

    A model with a distillation token learns the labels with its class head and the teacher with the
    other; every other learns both with its one head (CaiT, function matching).
    """

    cfg: DistillConfig

    @property
    def rows(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The cached logits, where there is a cache: all, as one of the largest takes less."""
        if not self.cfg.distill.cache:
            return {}
        return {LOGITS: jax.ShapeDtypeStruct((self.model.num_classes,), jnp.float16)}

    @functools.cached_property
    def frozen(self) -> Any:
        """The teacher's variables; none where its logits are cached, since it does not run."""
        of = distill.of_student(self.cfg.distill, self.model.num_classes)
        return {} if of.cache else {"teacher": models.abstract(of.teacher)}

    @functools.cached_property
    def teacher(self) -> Teacher:
        """(variables, the student's normalised images) -> the teacher's logits."""
        height, width, _ = models.input_shape(self.model)
        of = distill.of_student(self.cfg.distill, self.model.num_classes)
        return make_teacher(of, self.data.mean, self.data.std, (height, width))

    def _at_patch(self, side: int) -> Objective:
        """Return what learns from a FlexiViT that draws as the student, at the same size."""
        teacher = self.cfg.distill.teacher
        if not getattr(teacher, "drawn_patches", ()):
            return Supervised._at_patch(self, side)
        same = dataclasses.replace(self.cfg.distill, teacher=patch_sizes.at(teacher, side))
        cfg = dataclasses.replace(self.cfg, distill=same)
        return dataclasses.replace(self, model=patch_sizes.at(self.model, side), cfg=cfg)

    def check_extras(self) -> None:
        """Raise UserError if the teacher's weights or cache are missing or do not fit."""
        distill.check_source(self.cfg.distill)

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Read the teacher's weights or its cached logits.

        Raises UserError: weights that are not there or do not fit; a cache of something else.
        """
        del saved
        stream = distill.Stream(self.cfg.distill, self.model, self.data, seed, source)
        variables, digest, cache = distill.open_teacher(stream, positions)
        frozen = {} if variables is None else {"teacher": variables}
        return Extras(frozen, digest, rows=None if cache is None else cache.rows)

    def describe(self) -> list[str]:
        """Describe the teacher in a line."""
        cfg = self.cfg.distill
        if cfg.cache:
            return [f"learns from the logits in {cfg.cache}"]
        size = trees.num_params(self.frozen["teacher"]["params"])
        family = type(cfg.teacher).__name__.removesuffix("Config")
        return [f"learns from a {family} of {size:,} parameters, {cfg.weights}"]

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the total as mean over the batch; the metrics hold both losses.

        `teacher_agreement` is how often the logits trained on the teacher have its first guess,
        `teacher_top1` how often that guess is the label (in a mixed image, the label with the
        larger target), and `top1` the same of the student's own prediction.
        """
        cfg, train = self.cfg.distill, self.cfg.train_mode
        out, model_state = self.apply(params, ctx.model_state, batch["image"], rng, train=train)
        for_labels = out.aux.get("cls_logits", out.logits)
        base_loss = example_loss(for_labels, batch["targets"], self.cfg.loss).mean()
        logits = out.aux.get("dist_logits", out.logits)
        taught = jax.lax.stop_gradient(self._teacher_logits(ctx.frozen, batch))
        distill_loss = distillation_loss(logits, taught, cfg).mean()
        loss = (1 - cfg.alpha) * base_loss + cfg.alpha * distill_loss
        agrees = logits.argmax(axis=-1) == taught.argmax(axis=-1)
        metrics = {
            "loss": loss,
            "top1": top1(out.logits, batch["targets"]),
            "base_loss": base_loss,
            "distill_loss": distill_loss,
            "teacher_agreement": agrees.mean(dtype=jnp.float32),
            "teacher_top1": top1(taught, batch["targets"]),
        }
        return loss, Aux(metrics, model_state, ctx.objective)

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example, with the teacher's forward pass."""
        flops = Supervised.flops(self, variables)
        if self.frozen:
            image = jax.ShapeDtypeStruct((1, *models.input_shape(self.model)), jnp.float32)
            flops += count(self.teacher, self.frozen["teacher"], image)
        return flops

    def _teacher_logits(self, frozen: Any, batch: Batch) -> Float[Array, "B K"]:
        if LOGITS in batch:
            return batch[LOGITS].astype(jnp.float32)
        if TOP in batch:
            return dense(batch[TOP], batch[INDEX], batch[REST], self.model.num_classes)
        return self.teacher(frozen["teacher"], batch["image"])


def distillation_loss(
    logits: Float[Array, "B K"], teacher: Float[Array, "B K"], cfg: TeacherConfig
) -> Float[Array, " B"]:
    """Return the loss of every example against the teacher's logits, in nats."""
    if cfg.kind is Distillation.HARD:
        guess = teacher.argmax(axis=-1)[:, None]
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), guess, axis=-1)[:, 0]
        # The first guess of a broken teacher is class 0: the guard of the step would not see it.
        return jnp.where(jnp.isfinite(teacher).all(axis=-1), loss, jnp.nan)
    student = jax.nn.log_softmax(logits / cfg.temperature, axis=-1)
    target = jax.nn.log_softmax(teacher / cfg.temperature, axis=-1)
    kl = jnp.sum(jnp.exp(target) * (target - student), axis=-1) * cfg.temperature**2
    return kl / logits.shape[-1] if cfg.kind is Distillation.SOFT else kl
