# SPDX-License-Identifier: Apache-2.0
"""Supervised classification: a cross-entropy on labelled, possibly mixed images."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.data import mix
from vit_jax.losses import example_loss
from vit_jax.objectives.config import ObjectiveConfig


@dataclasses.dataclass(frozen=True)
class Supervised:
    """The objective of plain training.

    Attributes:
        cfg: loss and smoothing.
        apply: (variables, image, train, dropout key) -> (Output, new model_state).
        num_classes: K.
        mean, std: of the input, in units where white is 1.
        mixup_alpha: Beta parameter of mixup (arXiv:1710.09412); 0 is off.
    """

    cfg: ObjectiveConfig
    apply: Callable[..., tuple[Any, Any]]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mixup_alpha: float = 0.0

    def prepare(self, batch: dict[str, jax.Array], rng: jax.Array) -> dict[str, jax.Array]:
        """Normalise uint8 images, build the targets [B, K], mix the global batch."""
        image = mix.normalize(batch["image"], self.mean, self.std)
        targets = mix.targets(batch["label"], self.num_classes, self.cfg.label_smoothing)
        if self.mixup_alpha > 0:
            image, targets = mix.mixup(rng, image, targets, self.mixup_alpha)
        return {"image": image, "targets": targets}

    def loss(
        self,
        params: Any,
        frozen: Any,
        model_state: Any,
        batch: dict[str, jax.Array],
        rng: jax.Array,
    ) -> tuple[Float[Array, ""], tuple[dict[str, jax.Array], Any]]:
        """Return the mean loss, with top-1 against the largest target as a metric."""
        del frozen  # nothing but the model itself
        out, model_state = self.apply({"params": params, **model_state}, batch["image"], True, rng)
        loss = example_loss(out.logits, batch["targets"], self.cfg.loss).mean()
        # Any of the labels will do, as in evaluation; of a mixed image, the larger part's.
        targets, guess = batch["targets"], out.logits.argmax(axis=-1)[:, None]
        hit = jnp.take_along_axis(targets, guess, axis=-1)[:, 0] >= targets.max(axis=-1)
        return loss, ({"loss": loss, "top1": hit.mean(dtype=jnp.float32)}, model_state)
