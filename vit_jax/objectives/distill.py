# SPDX-License-Identifier: Apache-2.0
"""Distillation: the labels' loss and a teacher's, on the same mixed images (arXiv:2012.12877)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float16, Float32, Int, UInt

from vit_jax import models
from vit_jax.objectives.config import Distillation, DistillConfig
from vit_jax.objectives.supervised import Supervised, top1

Teacher = Callable[[Any, Float[Array, "B H W C"]], Float[Array, "B K"]]

# A batch's arrays of cached logits: all of them in float16, or the largest, where they are, and the
# one logit that stands for each of the others.
LOGITS, TOP, INDEX, REST = "teacher_logits", "teacher_top", "teacher_index", "teacher_rest"


@dataclasses.dataclass(frozen=True)
class Distill:
    """The objective of training with a teacher: (1 - alpha) * base + alpha * distillation.

    A model with a distillation token learns the labels with its class head and the teacher with the
    other; every other learns both with its one head (CaiT, function matching).

    Attributes:
        base: the loss against labels; it prepares the images that both networks see.
        cfg: kind, share and temperature.
        teacher: (variables, the student's images) -> logits. Its variables are those of
            `frozen["teacher"]`; where the batch brings cached logits it is not run.
    """

    base: Supervised
    cfg: DistillConfig
    teacher: Teacher

    def prepare(self, batch: dict[str, jax.Array], rng: jax.Array) -> dict[str, jax.Array]:
        """Prepare as `base` does; cached logits pass through."""
        return self.base.prepare(batch, rng)

    def loss(
        self,
        params: Any,
        frozen: Any,
        model_state: Any,
        batch: dict[str, jax.Array],
        rng: jax.Array,
    ) -> tuple[Float[Array, ""], tuple[dict[str, jax.Array], Any]]:
        """Return the total as mean over the batch; the metrics hold both parts of it.

        `teacher_agreement` is how often the logits that learn from the teacher have its first
        guess, `teacher_top1` how often that guess is the label (of a mixed image the larger
        part's), and `top1` that of the student's own prediction.
        """
        base = dataclasses.replace(self.base, apply=self._apply_for_labels)
        base_loss, (_, (model_state, out)) = base.loss(params, {}, model_state, batch, rng)
        logits = out.aux.get("dist_logits", out.logits)
        taught = jax.lax.stop_gradient(self._teacher_logits(frozen, batch))
        distill_loss = distillation_loss(logits, taught, self.cfg).mean()
        loss = (1 - self.cfg.alpha) * base_loss + self.cfg.alpha * distill_loss
        agrees = logits.argmax(axis=-1) == taught.argmax(axis=-1)
        metrics = {
            "loss": loss,
            "top1": top1(out.logits, batch["targets"]),
            "base_loss": base_loss,
            "distill_loss": distill_loss,
            "teacher_agreement": agrees.mean(dtype=jnp.float32),
            "teacher_top1": top1(taught, batch["targets"]),
        }
        return loss, (metrics, model_state)

    def _apply_for_labels(self, *args: Any) -> tuple[Any, Any]:
        """Give `base` the head that learns the labels, and the whole output beside the state."""
        out, model_state = self.base.apply(*args)
        return out.replace(logits=out.aux.get("cls_logits", out.logits)), (model_state, out)

    def _teacher_logits(self, frozen: Any, batch: dict[str, jax.Array]) -> Float[Array, "B K"]:
        if LOGITS in batch:
            return batch[LOGITS].astype(jnp.float32)
        if TOP in batch:
            return dense(batch[TOP], batch[INDEX], batch[REST], self.base.num_classes)
        return self.teacher(frozen["teacher"], batch["image"])


def distillation_loss(
    logits: Float[Array, "B K"], teacher: Float[Array, "B K"], cfg: DistillConfig
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


def make_teacher(
    cfg: DistillConfig, mean: tuple[float, ...], std: tuple[float, ...], size: tuple[int, int]
) -> Teacher:
    """Build the teacher in evaluation mode, on images as the student gets them.

    They are resized (bicubic with antialiasing, as Pillow and timm) and normalised anew where the
    teacher's image size, mean or std is another; the order of the two makes no difference.

    Args:
        cfg: the teacher's model, mean and std.
        mean, std: what the student's images are normalised by.
        size: (height, width) of these.
    """
    module = models.create(cfg.teacher)
    height, width, channels = models.input_shape(cfg.teacher)

    def teacher(variables: Any, image: Float[Array, "B H W C"]) -> Float[Array, "B K"]:
        if (height, width) != size:
            shape = (image.shape[0], height, width, channels)
            image = jax.image.resize(image, shape, "cubic", antialias=True)
        image = _renormalize(image, (mean, std), (cfg.mean or mean, cfg.std or std))
        out: Any = module.apply(variables, image, train=False)
        return out.logits.astype(jnp.float32)

    return teacher


def _renormalize(
    image: Float[Array, "B H W C"],
    old: tuple[tuple[float, ...], tuple[float, ...]],
    new: tuple[tuple[float, ...], tuple[float, ...]],
) -> Float[Array, "B H W C"]:
    if old == new:
        return image
    shift, scale, mean, std = (
        jnp.asarray(value, jnp.float32).reshape(1, 1, 1, -1) for value in (*old, *new)
    )
    return (image * scale + shift - mean) / std


def compact(
    logits: Float[Array, "B K"], top_k: int, temperature: float = 1.0
) -> dict[str, jax.Array]:
    """Turn logits into what a cache keeps of them: all in float16, or the `top_k` largest.

    The others are one number, with which their softmax at the temperature sums to what it did.
    """
    if not top_k:
        return {LOGITS: logits.astype(jnp.float16)}
    top, index = jax.lax.top_k(logits, top_k)
    others = jnp.put_along_axis(logits, index, -jnp.inf, axis=-1, inplace=False)
    mean = jax.nn.logsumexp(others / temperature, axis=-1) - jnp.log(logits.shape[-1] - top_k)
    rest = temperature * mean
    return {TOP: top.astype(jnp.float16), INDEX: index, REST: rest}


def dense(
    top: Float16[Array, "B k"],
    index: Int[Array, "B k"] | UInt[Array, "B k"],
    rest: Float32[Array, " B"],
    num_classes: int,
) -> Float32[Array, "B K"]:
    """Restore logits from the largest ones; the others are all `rest`."""
    logits = jnp.broadcast_to(rest[:, None], (top.shape[0], num_classes))
    values = top.astype(jnp.float32)
    return jnp.put_along_axis(logits, index.astype(jnp.int32), values, axis=-1, inplace=False)
