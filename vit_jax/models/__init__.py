# SPDX-License-Identifier: Apache-2.0
"""Every model family by name: `variant("vit_b16")` is a config, `create(config)` its module."""

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax import errors
from vit_jax.models import vit
from vit_jax.models.base import DType, ModelConfig, Output, Remat, pair
from vit_jax.models.vit import ViTConfig

# A family: its config class, its module, its named variants, its check.
_FAMILIES: dict[
    type, tuple[Callable[[Any], nn.Module], Mapping[str, Any], Callable[[Any], None]]
] = {ViTConfig: (vit.ViT, vit.VARIANTS, vit.validate)}
VARIANTS: dict[str, ModelConfig] = {
    name: cfg for _, variants, _ in _FAMILIES.values() for name, cfg in variants.items()
}


def variant(name: str, **overrides: Any) -> Any:
    """Return a config by name, with fields overridden: `variant("vit_s16_384", num_classes=10)`.

    A number after the last underscore is the resolution where it is no variant's own.

    Raises:
        UserError: an unknown name or field, with the nearest valid ones.
    """
    base = name
    sized = re.fullmatch(r"(.+)_(\d{2,4})", name)
    if name not in VARIANTS and sized:
        base, side = sized[1], int(sized[2])
        overrides = {"image_size": (side, side), **overrides}
    if base not in VARIANTS:
        raise errors.unknown("model", name, VARIANTS)
    cfg = copy.copy(VARIANTS[base])
    fields = {field.name: field.type for field in dataclasses.fields(cfg)}
    for name in overrides:
        if name not in fields:
            raise errors.unknown(f"field of {base}", name, fields)
    choices = {
        name: errors.choice(fields[name], f"model.{name}", value)
        for name, value in overrides.items()
    }
    return dataclasses.replace(cfg, **choices)


def create(cfg: ModelConfig) -> nn.Module:
    """Build the module of a config, after checking it.

    Raises:
        UserError: fields that do not go together.
    """
    module, _, validate = _FAMILIES[type(cfg)]
    validate(cfg)
    return module(cfg)


def input_shape(cfg: ModelConfig) -> tuple[int, int, int]:
    """Return the (H, W, C) of one image."""
    return (*pair(cfg.image_size, "image_size"), cfg.channels)


def init(module: nn.Module, cfg: ModelConfig, key: jax.Array) -> tuple[Any, Mapping[str, Any]]:
    """Initialise (params, model_state); pure, so that `eval_shape` and `jit` can run it."""
    variables = dict(module.init(key, jnp.zeros((1, *input_shape(cfg)), jnp.float32)))
    params = variables.pop("params")
    return params, variables


__all__ = [
    "VARIANTS",
    "DType",
    "ModelConfig",
    "Output",
    "Remat",
    "ViTConfig",
    "create",
    "init",
    "input_shape",
    "pair",
    "variant",
]
