# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers and their relatives in JAX and Flax: one config file, one command.

In Python: `create_model`, `load`, `fit`, and all that a config file needs; docs/python.md.
"""

import importlib
import importlib.util
import sys
import warnings
from typing import TYPE_CHECKING, Any

from vit_jax.version import __version__

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
    from vit_jax.config import Config, FaultsConfig, LogConfig
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
    from vit_jax.devices.sharding import MeshConfig, make_mesh
    from vit_jax.distill import Distillation, TeacherConfig
    from vit_jax.errors import UserError
    from vit_jax.evals import (
        ClassifyEval,
        DepthEval,
        EvalConfig,
        FeaturesEval,
        FewShotEval,
        InstanceEval,
        KNNEval,
        LinearEval,
        LossEval,
        MultiLabelEval,
        PanopticEval,
        RegressionEval,
        RetrievalEval,
        SegmentationEval,
        ThresholdRule,
        ZeroShotEval,
    )
    from vit_jax.figures.contact_sheet import overlay
    from vit_jax.inference.evaluate import make_evaluator, open_target, placed
    from vit_jax.inference.forward import make_predict
    from vit_jax.inference.trained import Trained
    from vit_jax.models import (
        BiTConfig,
        CaiTConfig,
        ConViTConfig,
        ConvNeXtConfig,
        DType,
        HieraConfig,
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
    from vit_jax.models.dense.dpt import DptConfig
    from vit_jax.models.layers.dense import ReduceDType
    from vit_jax.models.layers.mlp import Gelu
    from vit_jax.models.layers.pool import Pool
    from vit_jax.models.layers.posemb import PosEmbed
    from vit_jax.models.lora import LoraConfig
    from vit_jax.models.losses import Loss
    from vit_jax.models.text import TextConfig
    from vit_jax.objectives import (
        ContrastiveConfig,
        DepthConfig,
        DepthHead,
        DinoConfig,
        DistillConfig,
        EomtConfig,
        GramConfig,
        HeadConfig,
        IJepaConfig,
        LeJepaConfig,
        MaeConfig,
        MaskedPatchConfig,
        MaskLossConfig,
        ObjectiveConfig,
        RegressionConfig,
        RegressionLoss,
        SegmentConfig,
        SupervisedConfig,
        taught,
    )
    from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule
    from vit_jax.process.startup import configure
    from vit_jax.train.build import abstract_state, build
    from vit_jax.train.loop import Result
    from vit_jax.visual.saliency import make_saliency
    from vit_jax.weights.config import InitConfig

_NAMES = {
    "vit_jax.api": "Model create_model fit get_config list_models load normalize",
    "vit_jax.errors": "UserError",
    "vit_jax.process.startup": "configure",
    # A config and its groups.
    "vit_jax.config": "Config FaultsConfig LogConfig",
    "vit_jax.checkpoints": "CheckpointConfig",
    "vit_jax.data": "DataConfig TransformConfig MixConfig Background Crop CropRule Partner Resize",
    "vit_jax.distill": "Distillation TeacherConfig",
    "vit_jax.evals": "EvalConfig ClassifyEval FeaturesEval FewShotEval KNNEval LinearEval "
    "LossEval MultiLabelEval RegressionEval RetrievalEval ThresholdRule ZeroShotEval DepthEval "
    "InstanceEval PanopticEval SegmentationEval",
    "vit_jax.models.losses": "Loss",
    "vit_jax.models": "ModelConfig BiTConfig CaiTConfig ConViTConfig ConvNeXtConfig HieraConfig "
    "HybridConfig MixerConfig RegNetConfig ResNetConfig SwinConfig ViTConfig DType Output Remat",
    "vit_jax.models.layers.mlp": "Gelu",
    "vit_jax.models.layers.pool": "Pool",
    "vit_jax.models.layers.posemb": "PosEmbed",
    "vit_jax.models.lora": "LoraConfig",
    "vit_jax.models.text": "TextConfig",
    "vit_jax.objectives": "ObjectiveConfig ContrastiveConfig DinoConfig DistillConfig GramConfig "
    "HeadConfig IJepaConfig LeJepaConfig MaeConfig MaskedPatchConfig RegressionConfig "
    "RegressionLoss SupervisedConfig taught DepthConfig DepthHead EomtConfig MaskLossConfig "
    "SegmentConfig",
    "vit_jax.models.dense.dpt": "DptConfig",
    "vit_jax.optim": "MomentDtype OptimConfig Optimizer Schedule",
    "vit_jax.models.layers.dense": "ReduceDType",
    "vit_jax.devices.sharding": "MeshConfig make_mesh",
    "vit_jax.weights.config": "InitConfig",
    # Parts of a run, and of what is done with one.
    "vit_jax.checkpoints.checkpointer": "Checkpointer",
    "vit_jax.inference.evaluate": "make_evaluator open_target placed",
    "vit_jax.inference.forward": "make_predict",
    "vit_jax.inference.trained": "Trained",
    "vit_jax.train.build": "abstract_state build",
    "vit_jax.train.loop": "Result",
    "vit_jax.figures.contact_sheet": "overlay",
    "vit_jax.visual.saliency": "make_saliency",
}
_MODULES = ("data", "evals", "models", "objectives", "recipes", "sweeps", "weights")
# What is public, and its module: imported when it is first asked for, since the help of a command
# needs no jax.
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names.split()}
_PUBLIC.update({name: f"vit_jax.{name}" for name in _MODULES})  # read by Python 3.7, to say so
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"vit_jax has no {name!r}; dir(vit_jax) lists what it has")
    module = importlib.import_module(_PUBLIC[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> "list[str]":  # quoted for Python 3.7
    return [*__all__, "__version__"]


# Modules and packages that were elsewhere, for config files and notebooks written then.
_MOVED = {
    "analysis": "cost",
    "analysis.scaling": "sweeps.scaling",
    "aot": "cost",
    "config_json": "config.saved",
    "data.batches": "data.stream.batches",
    "data.copy_records": "data.sources.copy_records",
    "data.decode": "data.images.decode",
    "data.folders": "data.sources.folders",
    "data.mix": "data.augment.mix",
    "data.ops": "data.images.ops",
    "data.records": "data.sources.records",
    "data.transform": "data.stream.transform",
    "durations": "settings.durations",
    "evals.features": "evals.probes.features",
    "evals.knn": "evals.probes.knn",
    "evals.segmentation": "evals.probes.segmentation",
    "faults": "config.tree",
    "fields": "settings.fields",
    "files": "storage.files",
    "foreign": "storage.foreign",
    "hardware": "devices.hardware",
    "inference.export": "export.model",
    "inference.export_onnx": "export.onnx",
    "inference.export_stablehlo": "export.stablehlo",
    "inference.hub": "export.hub",
    "inference.quantize": "export.quantize",
    "launch": "process.launch",
    "losses": "models.losses",
    "measures": "settings.measures",
    "models.bit": "models.families.bit",
    "models.cait": "models.families.cait",
    "models.convit": "models.families.convit",
    "models.hybrid": "models.families.hybrid",
    "models.layers.conv": "models.conv.conv",
    "models.layers.resnet": "models.conv.resnet",
    "models.mixer": "models.families.mixer",
    "models.regnet": "models.families.regnet",
    "models.resnet": "models.families.resnet",
    "models.swin": "models.families.swin",
    "models.vit": "models.families.vit",
    "models.vit_config": "models.families.vit_config",
    "mup": "models.mup",
    "recipes.convnext": "recipes.imagenet.convnext",
    "recipes.deit": "recipes.imagenet.deit",
    "recipes.deit3": "recipes.imagenet.deit3",
    "recipes.google": "recipes.imagenet.google",
    "recipes.regnet": "recipes.imagenet.regnet",
    "recipes.swin": "recipes.imagenet.swin",
    "recipes.transforms": "recipes",
    "recipes.vit5": "recipes.imagenet.vit5",
    "reduction": "models.layers.dense",
    "remote": "storage.remote",
    "sharding": "devices.sharding",
    "signals": "process.signals",
    "startup": "process.startup",
    "train.workdir": "workdir.folder",
    "visual.contact_sheet": "figures.contact_sheet",
    "visual.curve": "figures.plots",
    "visual.figures": "figures.plots",
    "visual.overlay": "figures.contact_sheet",
    "weights.google": "weights.names.google",
    "weights.hf": "weights.names.hf",
    "weights.repository": "weights.readers.repository",
    "weights.timm": "weights.names.timm",
    "weights.torch_file": "weights.readers.torch_file",
}


class _Moved:
    """Imports a module by its old path as the very module of the new one, and warns of that."""

    def find_spec(self, fullname, path=None, target=None):  # noqa: ANN001, ANN202
        new = _new_path(fullname)
        this: Any = self  # no class of importlib.abc, whose import takes as long as all else here
        return importlib.util.spec_from_loader(fullname, this, origin=new) if new else None

    def create_module(self, spec):  # noqa: ANN001, ANN202
        return None

    def exec_module(self, module):  # noqa: ANN001, ANN202
        old = module.__name__
        new = _new_path(old)
        said = f"{old} is {new} now; the old name goes in version 0.4"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def _new_path(name: str) -> str:
    package, _, rest = name.partition(".")
    parts = rest.split(".") if package == "vit_jax" else []
    for end in range(len(parts), 0, -1):
        new = _MOVED.get(".".join(parts[:end]))
        if new:
            return ".".join([package, new, *parts[end:]])
    return ""


sys.meta_path.insert(0, _Moved())  # before the one of files, which would load a file twice
