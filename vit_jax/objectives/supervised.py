# SPDX-License-Identifier: Apache-2.0
"""Supervised classification: a cross-entropy on labelled, possibly mixed images."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from vit_jax.data import MixConfig, mix
from vit_jax.data.erase import erase
from vit_jax.losses import example_loss
from vit_jax.objectives.config import ObjectiveConfig


@dataclasses.dataclass(frozen=True)
class Supervised:
    """The objective of plain training.

    Attributes:
        cfg: loss and targets.
        apply: (variables, image, train, dropout key) -> (Output, new model_state).
        num_classes: K.
        mean, std: of the input, in units where white is 1.
        mix: mixup and cutmix.
        erasing_prob: of random erasing.
    """

    cfg: ObjectiveConfig
    apply: Callable[..., tuple[Any, Any]]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mix: MixConfig = dataclasses.field(default_factory=MixConfig)
    erasing_prob: float = 0.0

    def prepare(self, batch: dict[str, jax.Array], rng: jax.Array) -> dict[str, jax.Array]:
        """Normalise uint8 images, erase, build the targets [B, K], mix the global batch.

        The batch's other arrays pass through.
        """
        image = mix.normalize(batch["image"], self.mean, self.std)
        if self.erasing_prob > 0:
            # Far from the keys that mixing splits off.
            image = erase(jax.random.fold_in(rng, 2**16), image, self.erasing_prob)
        targets = mix.targets(batch["label"], self.num_classes, self.cfg.label_smoothing)
        image, targets = mix.mix(rng, image, targets, self.mix)
        if self.cfg.binarize:
            targets = (targets > 0).astype(targets.dtype)
        rest = {key: value for key, value in batch.items() if key not in ("image", "label")}
        return {**rest, "image": image, "targets": targets}

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
        variables = {"params": params, **model_state}
        out, model_state = self.apply(variables, batch["image"], self.cfg.train_mode, rng)
        loss = example_loss(out.logits, batch["targets"], self.cfg.loss).mean()
        return loss, ({"loss": loss, "top1": top1(out.logits, batch["targets"])}, model_state)


def top1(logits: Float[Array, "B K"], targets: Float[Array, "B K"]) -> Float32[Array, ""]:
    """Return how often the first guess is the largest target.

    Any of the labels will do, as in evaluation; of a mixed image, the larger part's.
    """
    hit = jnp.take_along_axis(targets, logits.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    return (hit >= targets.max(axis=-1)).mean(dtype=jnp.float32)
