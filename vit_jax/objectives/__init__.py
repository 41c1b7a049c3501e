# SPDX-License-Identifier: Apache-2.0
"""What a run learns: a config of `OBJECTIVES`, and the objective that is made of it."""

from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.objectives.base import Aux, Batch, Context, Extras, Objective, ObjectiveConfig, Predict
from vit_jax.objectives.dino import Dino
from vit_jax.objectives.dino_config import Balance, DinoConfig, HeadConfig
from vit_jax.objectives.distill import Distill, DistillConfig, taught
from vit_jax.objectives.mae import Mae, MaeConfig
from vit_jax.objectives.masked_patch import MaskedPatch, MaskedPatchConfig
from vit_jax.objectives.supervised import Supervised, SupervisedConfig
from vit_jax.settings.durations import Clock

# Each config's objective. To add one, see docs/add_an_objective.md.
OBJECTIVES: dict[type[ObjectiveConfig], type[Objective]] = {
    SupervisedConfig: Supervised,
    DistillConfig: Distill,
    MaskedPatchConfig: MaskedPatch,
    MaeConfig: Mae,
    DinoConfig: Dino,
}


def create(
    cfg: ObjectiveConfig, model: ModelConfig, data: DataConfig, clock: Clock | None = None
) -> Objective:
    """Build the objective of a config; `clock` is the run's, for durations of its own.

    Raises UserError: no config of a registered objective.
    """
    if type(cfg) not in OBJECTIVES:
        valid = ", ".join(kind.__name__ for kind in OBJECTIVES)
        no_entry = f"{type(cfg).__name__} is the config of no objective in objectives.OBJECTIVES"
        raise UserError(f"{no_entry}; valid: {valid}")
    return OBJECTIVES[type(cfg)](cfg, model, data, clock)
