# SPDX-License-Identifier: Apache-2.0
"""Numbers of images learned: one or several outputs, each brought to mean 0 and deviation 1.

The mean and the standard deviation are those of the training split. They are saved in the run's
config, and what is measured, predicted and exported is in the units of the data.
"""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

from vit_jax.data import DataConfig, Source
from vit_jax.data.augment import mix
from vit_jax.data.augment.mix import erase
from vit_jax.data.config import is_native
from vit_jax.data.sources.base import gives_numbers, values_of
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.objectives.base import Aux, Batch, Context, Objective, ObjectiveConfig, Predict
from vit_jax.settings.fields import value

_HEADS = ("head", "head_dist")  # of an image model, by the first part of their parameters' names


class RegressionLoss(enum.StrEnum):
    """How far a guess is from a number, in standard deviations of the training split."""

    MSE = "mse"  # the square of the error
    HUBER = "huber"  # half its square up to `delta`, then linear (Huber 1964)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class RegressionConfig(ObjectiveConfig):
    """Loss of numbers, and what brings each to mean 0 and deviation 1.

    Attributes:
        loss: mse, or huber where a few numbers are far off.
        delta: of Huber's loss, from where it is linear, in standard deviations.
        mean: of each output; () is that of the training split, found when the run begins.
        std: likewise.
    """

    gives_numbers: ClassVar[bool] = True

    loss: RegressionLoss = RegressionLoss.MSE
    delta: float = value(1.0, above=0)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = value((), above=0)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for values that exclude each other, or images that it cannot take."""
        if len(self.mean) != len(self.std):
            both = f"objective.mean={self.mean} and objective.std={self.std}"
            raise UserError(
                f"{both} are of each output; give as many of both, or () for the data's"
            )
        if self.mean and model.num_classes not in (0, len(self.mean)):
            outputs = f"and the head has {model.num_classes} outputs"
            raise UserError(f"objective.mean={self.mean} is of {len(self.mean)}, {outputs}")
        if self.loss is RegressionLoss.MSE and self.delta != 1.0:
            raise UserError(f"objective.delta={self.delta} is of objective.loss=huber; set that")
        if is_native(data.transform):
            crop = f"data.transform.crop={data.transform.crop.value}"
            raise UserError(f"numbers are learned from images of one size, not {crop}; set resize")

    def fitted(self, source: Source) -> "RegressionConfig":
        """Return the config with mean and deviation of the numbers of the training split.

        Raises UserError: one that is the same in all images, or never known.
        """
        if self.mean:
            return self
        values = values_of(source).astype(np.float64)
        mean, std = [], []
        for name, column in zip(source.class_names, values.T, strict=True):
            known = column[~np.isnan(column)]
            if len({*known.tolist()}) < 2:
                has = "is the same in all of" if len(known) else "is not known of any image of"
                raise UserError(
                    f"{name!r} {has} {source.name}: there is nothing to learn; leave it"
                )
            mean.append(float(f"{known.mean():.9g}"))
            std.append(float(f"{known.std():.9g}"))
        return dataclasses.replace(self, mean=tuple(mean), std=tuple(std))

    def check_source(self, source: Source, allowed: int = 0) -> None:
        """Raise UserError for a training split without numbers."""
        del allowed
        if not gives_numbers(source):
            has = f"{source.name} has no numbers"
            how = "choose columns by the end of the name, ?target=COLUMN,COLUMN"
            raise UserError(f"{has}; {how}, or set objective=supervised for its classes")

    def put_back(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return variables whose head gives numbers in the units of the data.

        An affine head takes up deviation and mean, so that whoever runs the model needs neither.
        """
        if not self.mean:
            return variables
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        params = dict(variables["params"])
        for name in _HEADS:
            if name in params:
                head = params[name]
                bias = np.asarray(head["bias"]) * std + mean
                params[name] = {**head, "kernel": np.asarray(head["kernel"]) * std, "bias": bias}
        return {**variables, "params": params}


@dataclasses.dataclass(frozen=True)
class Regression(Objective):
    """The objective of numbers; `cfg` is a `RegressionConfig`."""

    cfg: RegressionConfig

    @property
    def fields(self) -> tuple[str, ...]:
        return ("value",)

    @property
    def _scale(self) -> tuple[Float32[np.ndarray, "1 K"], Float32[np.ndarray, "1 K"]]:
        count = self.model.num_classes
        mean, std = self.cfg.mean or (0.0,) * count, self.cfg.std or (1.0,) * count
        return np.asarray(mean, np.float32)[None], np.asarray(std, np.float32)[None]

    def _known(self, batch: Mapping[str, Array]) -> tuple[Float[Array, "B K"], Bool[Array, "B K"]]:
        """Return what is to be guessed, in deviations, 0 where it is not known; and where it is."""
        mean, std = self._scale
        known = ~jnp.isnan(batch["value"])
        return jnp.where(known, (batch["value"] - mean) / std, 0.0), known

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise images, erase, mix images and numbers of the global batch in the same shares.

        A mixture of a number that is not known is not known.
        """
        data = self.data
        image = mix.normalize(batch["image"], data.mean, data.std)
        if data.erasing_prob > 0:
            image = erase(jax.random.fold_in(rng, 2**16), image, data.erasing_prob)
        target, known = self._known(batch)
        image, target, weight = mix.mix_known(
            rng, image, target, known.astype(jnp.float32), data.mix
        )
        rest = {key: array for key, array in batch.items() if key not in ("image", "value")}
        return {**rest, "image": image, "targets": target, "known": weight}

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean loss over the images, and the mean absolute error in deviations."""
        out, state = self.apply(params, ctx.model_state, batch["image"], rng, train=True)
        guess, known = out.logits.astype(jnp.float32), batch["known"]
        loss = self._losses(guess, batch["targets"], known).mean()
        error = (jnp.abs(guess - batch["targets"]) * known).mean()
        return loss, Aux({"loss": loss, "error": error}, state, ctx.objective)

    def _losses(
        self, guess: Float[Array, "B K"], target: Float[Array, "B K"], known: Float[Array, "B K"]
    ) -> Float[Array, " B"]:
        """Return the loss of each image: the mean over the outputs, 0 of what is not known."""
        error = guess - target
        each = error**2
        if self.cfg.loss is RegressionLoss.HUBER:
            size, delta = jnp.abs(error), self.cfg.delta
            each = jnp.where(size <= delta, 0.5 * each, delta * (size - 0.5 * delta))
        return (each * known).mean(axis=-1)

    def example_losses(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return the loss [B] of each image."""
        guess = self.encode(variables, batch).logits.astype(jnp.float32)
        target, known = self._known(batch)
        return self._losses(guess, target, known.astype(jnp.float32))

    @functools.cached_property
    def predictors(self) -> Mapping[str, Predict]:
        """Return what a plain objective has, and "value" [B, K] in the units of the data."""
        plain = {"features": self._features, "loss": self.example_losses}
        return {**plain, "value": self._value}

    def _value(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        mean, std = self._scale
        return self.encode(variables, batch).logits.astype(jnp.float32) * std + mean
