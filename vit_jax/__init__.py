# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers and their relatives in JAX and Flax: one config file, one command.

In Python: `create_model`, `load`, `fit`, and all that a config file needs; docs/python.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `_PUBLIC` imports, for editors and type checkers
    from vit_jax import data, evals, models, objectives, recipes, sweeps, weights
    from vit_jax.api import (
        Model,
        create_model,
        fit,
        get_config,
        list_models,
        load,
        normalize,
    )
    from vit_jax.checkpoints import CheckpointConfig
    from vit_jax.checkpoints.checkpointer import Checkpointer
    from vit_jax.config import Config, LogConfig
    from vit_jax.data import (
        Background,
        Crop,
        CropRule,
        DataConfig,
        MixConfig,
        Partner,
        Resize,
        TransformConfig,
    )
    from vit_jax.distill import Distillation, TeacherConfig
    from vit_jax.errors import UserError
    from vit_jax.evals import (
        ClassifyEval,
        EvalConfig,
        FewShotEval,
        KNNEval,
        LinearEval,
        LossEval,
    )
    from vit_jax.faults import FaultsConfig
    from vit_jax.inference.evaluate import make_evaluator, open_target, placed
    from vit_jax.inference.forward import make_predict
    from vit_jax.inference.trained import Trained
    from vit_jax.losses import Loss
    from vit_jax.models import (
        BiTConfig,
        CaiTConfig,
        ConViTConfig,
        DType,
        HybridConfig,
        MixerConfig,
        ModelConfig,
        Output,
        RegNetConfig,
        Remat,
        ResNetConfig,
        SwinConfig,
        ViTConfig,
    )
    from vit_jax.models.layers.mlp import Gelu
    from vit_jax.models.layers.pool import Pool
    from vit_jax.models.layers.posemb import PosEmbed
    from vit_jax.models.lora import LoraConfig
    from vit_jax.objectives import (
        DinoConfig,
        DistillConfig,
        HeadConfig,
        MaeConfig,
        MaskedPatchConfig,
        ObjectiveConfig,
        SupervisedConfig,
        taught,
    )
    from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule
    from vit_jax.reduction import ReduceDType
    from vit_jax.sharding import MeshConfig, make_mesh
    from vit_jax.startup import configure
    from vit_jax.train.build import abstract_state, build
    from vit_jax.train.loop import Result
    from vit_jax.visual.overlay import overlay
    from vit_jax.visual.saliency import make_saliency
    from vit_jax.weights.config import InitConfig

__version__ = "0.1.0"

_NAMES = {
    "vit_jax.api": "Model create_model fit get_config list_models load normalize",
    "vit_jax.errors": "UserError",
    "vit_jax.startup": "configure",
    # A config and its groups.
    "vit_jax.config": "Config LogConfig",
    "vit_jax.checkpoints": "CheckpointConfig",
    "vit_jax.data": "DataConfig TransformConfig MixConfig Background Crop CropRule Partner Resize",
    "vit_jax.distill": "Distillation TeacherConfig",
    "vit_jax.evals": "EvalConfig ClassifyEval FewShotEval KNNEval LinearEval LossEval",
    "vit_jax.faults": "FaultsConfig",
    "vit_jax.losses": "Loss",
    "vit_jax.models": "ModelConfig BiTConfig CaiTConfig ConViTConfig HybridConfig MixerConfig "
    "RegNetConfig ResNetConfig SwinConfig ViTConfig DType Output Remat",
    "vit_jax.models.layers.mlp": "Gelu",
    "vit_jax.models.layers.pool": "Pool",
    "vit_jax.models.layers.posemb": "PosEmbed",
    "vit_jax.models.lora": "LoraConfig",
    "vit_jax.objectives": "ObjectiveConfig DinoConfig DistillConfig HeadConfig MaeConfig "
    "MaskedPatchConfig SupervisedConfig taught",
    "vit_jax.optim": "MomentDtype OptimConfig Optimizer Schedule",
    "vit_jax.reduction": "ReduceDType",
    "vit_jax.sharding": "MeshConfig make_mesh",
    "vit_jax.weights.config": "InitConfig",
    # Parts of a run, and of what is done with one.
    "vit_jax.checkpoints.checkpointer": "Checkpointer",
    "vit_jax.inference.evaluate": "make_evaluator open_target placed",
    "vit_jax.inference.forward": "make_predict",
    "vit_jax.inference.trained": "Trained",
    "vit_jax.train.build": "abstract_state build",
    "vit_jax.train.loop": "Result",
    "vit_jax.visual.overlay": "overlay",
    "vit_jax.visual.saliency": "make_saliency",
}
_MODULES = ("data", "evals", "models", "objectives", "recipes", "sweeps", "weights")
# What is public, and its module: imported when it is first asked for, since the help of a command
# needs no jax.
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names.split()}
_PUBLIC |= {name: f"vit_jax.{name}" for name in _MODULES}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"vit_jax has no {name!r}; dir(vit_jax) lists what it has")
    module = importlib.import_module(_PUBLIC[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
