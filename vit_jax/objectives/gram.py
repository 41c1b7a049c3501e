# SPDX-License-Identifier: Apache-2.0
"""Gram anchoring (DINOv3, arXiv:2508.10104 section 4): patches stay as alike as a teacher's.

In a long run of self-distillation the patches of an image grow alike. Here the matrix of their
cosine similarities is held to that of a copy of the teacher, made in the run and then kept, which
may see the same crops at a higher resolution.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, base
from vit_jax.settings.durations import Clock, parse
from vit_jax.settings.fields import check_effects, value
from vit_jax.weights.resize import bicubic

_EXACT = jax.lax.Precision.HIGHEST
_SMALL = 1e-12  # the least norm that is divided by, as in PyTorch's normalize


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class GramConfig:
    """Gram anchoring; it acts with a `weight`.

    Attributes:
        weight: of the loss; 0 is off.
        start: when it begins and the teacher is first copied.
        warmup: how long its weight rises, by half a cosine from 0; "" is not at all.
        every: how often the teacher is copied again; "" is never.
        copies: how many copies at most, the first among them.
        size: (H, W) in pixels of the large crops as the copy sees them, without colours; () is the
            student's.
    """

    weight: float = value(0.0, least=0, note="0 is off")
    start: str = value("", unit="duration")
    warmup: str = value("", unit="duration")
    every: str = value("", unit="duration")
    copies: int = value(1, least=1)
    size: tuple[int, ...] = value((), least=1, unit="pixels")

    def check(self, model: ModelConfig) -> None:
        """Raise UserError for settings that have no effect or no patches, in one line."""
        on, again = self.weight > 0, bool(self.every)
        names = ("start", "warmup", "every", "copies", "size")
        check_effects(self, "objective.gram.", [(on, "without objective.gram.weight", *names)])
        once = [(again, "without objective.gram.every", "copies")]
        check_effects(self, "objective.gram.", once)
        for text in (self.start, self.warmup, self.every):
            if text:
                parse(text)
        if self.size:
            size = base.pair(self.size, "gram.size")
            models.patch_grid(model, size)
            full = models.input_shape(model)[:2]
            if size != full and not getattr(model, "dynamic_image_size", False):
                why = "is not the model's image_size; set model.dynamic_image_size=True"
                raise UserError(f"objective.gram.size={self.size} {why}")


def gram_loss(student: Float[Array, "B N D"], teacher: Float[Array, "B N D"]) -> Float32[Array, ""]:
    """Return the mean of (S S^T - T T^T)^2 over images and pairs of patches (equation 2).

    S and T are the patches of each image, each divided by its norm, in float32. No gradient passes
    through the teacher's.
    """
    found, wanted = _similarity(student), _similarity(jax.lax.stop_gradient(teacher))
    return jnp.square(found - wanted).mean()


def _similarity(patches: Float[Array, "B N D"]) -> Float32[Array, "B N N"]:
    x = patches.astype(jnp.float32)
    # A maximum inside the root: the gradient of a root at 0 is infinite.
    x /= jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis=-1, keepdims=True), _SMALL**2))
    return jnp.einsum("bnd,bmd->bnm", x, x, precision=_EXACT)


def regridded(
    patches: Float[Array, "B N D"], old: tuple[int, int], new: tuple[int, int]
) -> Float32[Array, "B M D"]:
    """Resize patches in row-major order to another grid, by PyTorch's bicubic, not antialiased."""
    if old == new:
        return patches.astype(jnp.float32)
    square = patches.astype(jnp.float32).reshape(-1, *old, patches.shape[-1])
    rows, columns = (
        jnp.asarray(bicubic(*sides), jnp.float32) for sides in zip(old, new, strict=True)
    )
    found = jnp.einsum("pi,qj,bijd->bpqd", rows, columns, square, precision=_EXACT)
    return found.reshape(len(patches), -1, patches.shape[-1])


def started(cfg: GramConfig, clock: Clock | None, step: Array) -> Bool[Array, ""]:
    """Return whether it has begun in the step after `step` steps."""
    return step >= (clock.steps(cfg.start) if clock else 0)


def weight(cfg: GramConfig, clock: Clock | None, step: Array) -> Float32[Array, ""]:
    """Return the loss's weight in the step after `step` steps."""
    start, rise = (clock.steps(text) if clock else 0 for text in (cfg.start, cfg.warmup))
    done = jnp.asarray(step - start, jnp.float32)
    share = jnp.clip(done / rise, 0.0, 1.0) if rise else jnp.ones(())
    return jnp.where(done >= 0, cfg.weight * (1 - jnp.cos(jnp.pi * share)) / 2, 0.0)


def copied(cfg: GramConfig, clock: Clock | None, step: Array, kept: Any, average: Any) -> Any:
    """Return the copy of the teacher, made anew of `average` in the steps in which it is."""
    start, every = (clock.steps(text) if clock else 0 for text in (cfg.start, cfg.every))
    done = step - start
    now = done == 0
    if every:
        now = (done >= 0) & (done % every == 0) & (done // every < cfg.copies)
    return jax.tree.map(lambda old, new: jnp.where(now, new, old), kept, average)
