# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers and their relatives in JAX and Flax: one config file, one command.

In Python: `create_model`, `load`, `fit`, `get_config`, `list_models`; docs/python.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.api import Model, create_model, fit, get_config, list_models, load

__version__ = "0.1.0"
__all__ = ["Model", "create_model", "fit", "get_config", "list_models", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # late: a command's help needs no jax
        return getattr(importlib.import_module("vit_jax.api"), name)
    raise AttributeError(f"module 'vit_jax' has no attribute {name!r}; it offers {__all__}")
