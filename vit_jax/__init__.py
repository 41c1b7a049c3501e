# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers and their relatives in JAX and Flax: one config file, one command.

In Python: `create_model`, `load`, `fit`, `get_config`, `list_models`; docs/python.md.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from vit_jax.version import __version__

if TYPE_CHECKING:
    from vit_jax.api import Model, create_model, fit, get_config, list_models, load

__all__ = ["Model", "create_model", "fit", "get_config", "list_models", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # late: a command's help needs no jax
        return getattr(importlib.import_module("vit_jax.api"), name)
    raise AttributeError(f"module 'vit_jax' has no attribute {name!r}; it offers {__all__}")


# Modules and packages that were elsewhere in 0.1, for config files and notebooks written then.
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
    "faults": "config.faults",
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
    "reduction": "models.reduction",
    "remote": "storage.remote",
    "sharding": "devices.sharding",
    "signals": "process.signals",
    "startup": "process.startup",
    "train.workdir": "workdir.folder",
    "visual.contact_sheet": "figures.contact_sheet",
    "visual.curve": "figures.curve",
    "visual.figures": "figures.plots",
    "visual.overlay": "figures.overlay",
    "weights.google": "weights.names.google",
    "weights.hf": "weights.names.hf",
    "weights.repository": "weights.readers.repository",
    "weights.timm": "weights.names.timm",
    "weights.torch_file": "weights.readers.torch_file",
}


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module by its old path as the very module of the new one, when it is asked for."""

    def find_spec(self, fullname, path=None, target=None):  # noqa: ANN001, ANN202
        new = _new_path(fullname)
        return importlib.util.spec_from_loader(fullname, self, origin=new) if new else None

    def create_module(self, spec):  # noqa: ANN001, ANN202
        return None

    def exec_module(self, module):  # noqa: ANN001, ANN202
        sys.modules[module.__name__] = importlib.import_module(_new_path(module.__name__))


def _new_path(name: str) -> str:
    package, _, rest = name.partition(".")
    parts = rest.split(".") if package == "vit_jax" else []
    for end in range(len(parts), 0, -1):
        new = _MOVED.get(".".join(parts[:end]))
        if new:
            return ".".join([package, new, *parts[end:]])
    return ""


sys.meta_path.insert(0, _Moved())  # before the one of files, which would load a file twice
