# SPDX-License-Identifier: Apache-2.0
"""What a run learns: a config of `OBJECTIVES`, and the objective that is made of it."""

import importlib
from typing import TYPE_CHECKING, Any

from vit_jax import errors
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.objectives.base import (
    Aux,
    Batch,
    Context,
    Extras,
    Objective,
    ObjectiveConfig,
    Predict,
)
from vit_jax.objectives.supervised import Supervised, SupervisedConfig
from vit_jax.settings.durations import Clock

if TYPE_CHECKING:  # what `__getattr__` imports, for editors and type checkers
    from vit_jax.objectives.contrastive import (
        Contrastive,
        ContrastiveConfig,
        ContrastiveLoss,
        Lock,
    )
    from vit_jax.objectives.dense.depth import Depth, DepthConfig, DepthHead
    from vit_jax.objectives.dense.eomt import Eomt, EomtConfig
    from vit_jax.objectives.dense.losses import MaskLossConfig
    from vit_jax.objectives.dense.segment import Segment, SegmentConfig
    from vit_jax.objectives.dino import Dino
    from vit_jax.objectives.dino_config import Balance, DinoConfig, HeadConfig
    from vit_jax.objectives.distill import Distill, DistillConfig, taught
    from vit_jax.objectives.gram import GramConfig
    from vit_jax.objectives.ijepa import IJepa, IJepaConfig
    from vit_jax.objectives.lejepa import LeJepa, LeJepaConfig
    from vit_jax.objectives.mae import Mae, MaeConfig
    from vit_jax.objectives.masked_patch import MaskedPatch, MaskedPatchConfig
    from vit_jax.objectives.regression import Regression, RegressionConfig, RegressionLoss

# The class of an objective's config, and the file here that has both: `MaeConfig` and `Mae`. A file
# is imported when its objective is asked for. To add one, see docs/add_an_objective.md.
OBJECTIVES = {
    "SupervisedConfig": "supervised",
    "DistillConfig": "distill",
    "MaskedPatchConfig": "masked_patch",
    "MaeConfig": "mae",
    "DinoConfig": "dino",
    "LeJepaConfig": "lejepa",
    "IJepaConfig": "ijepa",
    "ContrastiveConfig": "contrastive",
    "SegmentConfig": "dense.segment",
    "EomtConfig": "dense.eomt",
    "DepthConfig": "dense.depth",
    "RegressionConfig": "regression",
}
_OTHERS = {"Balance": "dino_config", "HeadConfig": "dino_config", "taught": "distill"}
_OTHERS |= dict.fromkeys(("ContrastiveLoss", "Lock"), "contrastive") | {"GramConfig": "gram"}
_OTHERS |= {"MaskLossConfig": "dense.losses", "DepthHead": "dense.depth"}
_OTHERS |= {"RegressionLoss": "regression"}


def __getattr__(name: str) -> Any:
    file = _OTHERS.get(name) or OBJECTIVES.get(name) or OBJECTIVES.get(f"{name}Config")
    if file is None:
        raise AttributeError(f"vit_jax.objectives has no {name!r}")
    return getattr(_file(file), name)


def _file(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def config_class(name: str) -> type[ObjectiveConfig]:
    """Return the class of an objective's config by its name.

    Raises UserError: an unknown name, with the nearest valid one.
    """
    if name not in OBJECTIVES:
        raise errors.unknown("family of objectives", name, OBJECTIVES)
    return getattr(_file(OBJECTIVES[name]), name)


def create(
    cfg: ObjectiveConfig, model: ModelConfig, data: DataConfig, clock: Clock | None = None
) -> Objective:
    """Build the objective of a config; `clock` is the run's, for durations of its own.

    Raises UserError: no config of a registered objective.
    """
    name = type(cfg).__name__
    if name not in OBJECTIVES or config_class(name) is not type(cfg):
        no_entry = f"{name} is the config of no objective in objectives.OBJECTIVES"
        raise UserError(f"{no_entry}; valid: {', '.join(OBJECTIVES)}")
    objective = getattr(_file(OBJECTIVES[name]), name.removesuffix("Config"))
    return objective(cfg, model, data, clock)
