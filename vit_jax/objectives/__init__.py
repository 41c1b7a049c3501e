# SPDX-License-Identifier: Apache-2.0
"""What a step minimises: an `Objective` prepares the global batch and returns a scalar loss."""

from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float

from vit_jax.objectives.config import (
    Distillation,
    DistillConfig,
    ObjectiveConfig,
    check_effect,
    check_teacher,
    validate,
)
from vit_jax.objectives.distill import Distill, Teacher, make_teacher
from vit_jax.objectives.supervised import Supervised

Batch = dict[str, jax.Array]


@runtime_checkable  # beartype checks annotations with isinstance
class Objective(Protocol):
    """What `make_train_step` differentiates."""

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Turn a loaded batch into the model's input and targets, over the whole global batch.

        Mixing happens here, before gradient accumulation splits the batch, so that results depend
        neither on the number of devices nor on the number of micro-batches.
        """
        ...

    def loss(
        self, params: Any, frozen: Any, model_state: Any, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], tuple[dict[str, jax.Array], Any]]:
        """Return the mean loss of a prepared (micro-)batch and (metrics, new model_state).

        `frozen` holds parameters that are not trained (a teacher): passed in, never closed over.
        """
        ...


__all__ = [
    "Batch",
    "Distill",
    "DistillConfig",
    "Distillation",
    "Objective",
    "ObjectiveConfig",
    "Supervised",
    "Teacher",
    "check_effect",
    "check_teacher",
    "make_teacher",
    "validate",
]
