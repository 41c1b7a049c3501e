# SPDX-License-Identifier: Apache-2.0
"""Supervised classification: a cross-entropy on labelled, possibly mixed images."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from vit_jax.data import GRIDS, DataConfig
from vit_jax.data.augment import mix
from vit_jax.data.augment.mix import erase
from vit_jax.data.config import is_on
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.losses import Loss, example_loss
from vit_jax.objectives.base import Aux, Batch, Context, Objective, ObjectiveConfig
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class SupervisedConfig(ObjectiveConfig):
    """Loss and target settings.

    Attributes:
        loss: softmax for one label per image, sigmoid for several (or as AugReg trains on 21k), bce
            as DeiT III.
        label_smoothing: share of the target spread evenly over all classes.
        binarize: count every positive target of a mixed image as 1 (DeiT III's `targets.gt(0)`).
        train_mode: run the model as for training, with dropout, stochastic depth and BatchNorm of
            the batch; off, DeiT's fine-tuning trains it as it is evaluated.
    """

    takes_unknown: ClassVar[bool] = True

    loss: Loss = Loss.SOFTMAX
    label_smoothing: float = value(0.0, least=0, below=1)
    binarize: bool = False
    train_mode: bool = True

    @property
    def head_loss(self) -> Loss:
        """The loss that the logits are trained with."""
        return self.loss

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for values that exclude each other or have no effect."""
        if self.binarize and self.loss is Loss.SOFTMAX:
            why = "makes targets that are no distribution over the classes"
            raise UserError(
                f"objective.binarize {why}; set objective.loss=bce, or sigmoid",
                field="objective.binarize",
            )
        if self.binarize and self.label_smoothing:
            why = (
                f"with objective.label_smoothing={self.label_smoothing} makes every class a target"
            )
            raise UserError(
                f"objective.binarize {why}; set label_smoothing=0.0", field="objective.binarize"
            )
        if self.binarize and not is_on(data.mix):
            advice = "set data.mix.mixup_alpha or data.mix.cutmix_alpha, or leave it"
            raise UserError(
                f"objective.binarize has no effect on images not mixed; {advice}",
                field="objective.binarize",
            )
        rates = ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "patch_drop_rate")
        for name in rates:
            if not self.train_mode and getattr(model, name, 0):
                why = "has no effect with objective.train_mode=False; set it to 0.0"
                raise UserError(f"model.{name}={getattr(model, name)} {why}")


@dataclasses.dataclass(frozen=True)
class Supervised(Objective):
    """The objective of plain training; `cfg` is a `SupervisedConfig`."""

    cfg: SupervisedConfig

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise uint8 images, erase, build the targets [B, K], mix the global batch.

        The batch's other arrays pass through.
        """
        data = self.data
        if GRIDS in batch:
            from vit_jax.objectives import native  # late: most runs have images of one size

            own = native.prepare(batch, rng, self.model, data, self.cfg.label_smoothing)
            return self._binarized(own)
        image = mix.normalize(batch["image"], data.mean, data.std)
        if data.erasing_prob > 0:
            # Far from the keys that mixing splits off.
            image = erase(jax.random.fold_in(rng, 2**16), image, data.erasing_prob)
        targets = mix.targets(batch["label"], self.model.num_classes, self.cfg.label_smoothing)
        rest = {key: value for key, value in batch.items() if key not in ("image", "label")}
        known = mix.known(batch["label"])
        if known is not None:
            image, targets, rest["known"] = mix.mix_known(rng, image, targets, known, data.mix)
        else:
            image, targets = mix.mix(rng, image, targets, data.mix)
        return self._binarized({**rest, "image": image, "targets": targets})

    def _binarized(self, batch: Batch) -> Batch:
        if not self.cfg.binarize:
            return batch
        return {**batch, "targets": (batch["targets"] > 0).astype(batch["targets"].dtype)}

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean loss, with top-1 against the largest target as a metric."""
        train = self.cfg.train_mode
        if GRIDS in batch:
            return self._native_loss(params, ctx, batch, rng)
        out, model_state = self.apply(params, ctx.model_state, batch["image"], rng, train=train)
        known = batch.get("known")
        loss = example_loss(out.logits, batch["targets"], self.cfg.loss, known).mean()
        metrics = {"loss": loss, "top1": top1(out.logits, batch["targets"])}
        return loss, Aux(metrics, model_state, ctx.objective)

    def _native_loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean over the images of rows that hold one each, or several."""
        from vit_jax.objectives import native

        grids, state = batch[GRIDS], ctx.model_state
        given = {"train": self.cfg.train_mode, GRIDS: grids}
        out, state = self.apply(params, state, batch["image"], rng, **given)
        logits, targets = (x.reshape(-1, x.shape[-1]) for x in (out.logits, batch["targets"]))
        losses = example_loss(logits, targets, self.cfg.loss)
        loss = native.mean_over_images(losses, grids, self.data)
        top1 = native.mean_over_images(hits(logits, targets), grids, self.data)
        return loss, Aux(
            {"loss": loss, "top1": top1, "fill": native.fill(batch)}, state, ctx.objective
        )

    def example_losses(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return the loss [B] of each example against its label, without smoothing."""
        logits = self.encode(variables, batch).logits.astype(jnp.float32)
        targets = mix.targets(batch["label"], self.model.num_classes, 0.0)
        return example_loss(logits, targets, self.cfg.loss, mix.known(batch["label"]))


def top1(logits: Float[Array, "B K"], targets: Float[Array, "B K"]) -> Float32[Array, ""]:
    """Return how often the first guess is the largest target."""
    return hits(logits, targets).mean(dtype=jnp.float32)


def hits(logits: Float[Array, "B K"], targets: Float[Array, "B K"]) -> Float32[Array, " B"]:
    """Return 1 where the first guess is the largest target, else 0.

    Among equal targets any counts, as in evaluation.
    """
    hit = jnp.take_along_axis(targets, logits.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    return (hit >= targets.max(axis=-1)).astype(jnp.float32)
