# SPDX-License-Identifier: Apache-2.0
"""What objectives with a head over an encoder's patches share: freezing, and the head's state."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.cost.flops import count, train_flops
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.objectives.base import Objective, ObjectiveConfig

_DROPS = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class PixelHeadConfig(ObjectiveConfig):
    """Base of the configs of such objectives.

    Attributes:
        beside: the first component of the names of the head's parameters.
        frozen: the encoder stays as `init.weights` has it, and runs as in evaluation.
    """

    uses_labels: ClassVar[bool] = False
    scores_images: ClassVar[bool] = False
    beside: ClassVar[str] = ""

    frozen: bool = False

    @property
    def locked(self) -> str:
        """The regex of the encoder's parameters, where it is frozen."""
        return rf"^(?!{self.beside}(?:/|$))" if self.frozen else ""

    def check_frozen(self, model: ModelConfig) -> None:
        """Raise UserError for what a frozen encoder would drop at random, and does not."""
        for name in _DROPS:
            if self.frozen and getattr(model, name, 0):
                raise UserError(
                    f"model.{name}={getattr(model, name)} has no effect with "
                    "objective.frozen=True; set it to 0.0",
                    field=f"model.{name}",
                )

    def check_start(self, weights: str) -> None:
        """Refuse to freeze what starts at random."""
        if self.frozen and not weights:
            raise UserError(
                "objective.frozen=True keeps the encoder as it starts, which is at random; set "
                "init.weights, or objective.frozen=False",
                field="objective.frozen",
            )


Config = TypeVar("Config", bound=ObjectiveConfig)


def with_num_classes(cfg: Config, num_classes: int) -> Config:
    """Return settings for a dataset's K classes, if their `num_classes` leaves it to that by 0."""
    given: Any = cfg
    return cfg if given.num_classes else dataclasses.replace(given, num_classes=num_classes)


def apart(state: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide Flax's collections, by the first component of names: the encoder's, and the head's."""
    rest = {
        kind: {key: leaf for key, leaf in tree.items() if key != name}
        for kind, tree in state.items()
    }
    own = {kind: tree[name] for kind, tree in state.items() if name in tree}
    return {kind: tree for kind, tree in rest.items() if tree}, own


def joined(rest: Mapping[str, Any], own: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the collections that `apart` divides."""
    both = {kind: {**rest.get(kind, {}), name: tree} for kind, tree in own.items()}
    return {**rest, **both}


def head_flops(
    objective: Objective, predict: Callable[[Any, Any, jax.Array], Any], variables: Any
) -> int:
    """Return the model FLOPs of training on one example; a frozen encoder runs forward only.

    `predict` runs encoder and head: (objective, variables, image) -> what they say.
    """
    looped = dataclasses.replace(objective, model=models.looped(objective.model))
    image = jax.ShapeDtypeStruct((1, *models.input_shape(objective.model)), jnp.float32)
    whole = count(functools.partial(predict, looped), variables, image)
    if not objective.cfg.frozen:
        return train_flops(whole)
    encoder = Objective.flops(objective, variables) // 3
    return encoder + train_flops(whole - encoder)
