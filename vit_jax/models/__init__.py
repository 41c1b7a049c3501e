# SPDX-License-Identifier: Apache-2.0
"""Every model family by name: `variant("vit_b16")` is a config, `create(config)` its module."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax import errors, trees
from vit_jax.errors import UserError
from vit_jax.models import mup
from vit_jax.models.base import CAPTURED, DType, ModelConfig, Output, Remat, pair
from vit_jax.models.facts import Attention, Family
from vit_jax.models.families import (
    bit,
    cait,
    convit,
    hybrid,
    mixer,
    regnet,
    resnet,
    swin,
    vit_family,
)
from vit_jax.models.families.bit import BiTConfig
from vit_jax.models.families.cait import CaiTConfig
from vit_jax.models.families.convit import ConViTConfig
from vit_jax.models.families.hybrid import HybridConfig
from vit_jax.models.families.mixer import MixerConfig
from vit_jax.models.families.regnet import RegNetConfig
from vit_jax.models.families.resnet import ResNetConfig
from vit_jax.models.families.swin import SwinConfig
from vit_jax.models.families.vit_config import ViTConfig
from vit_jax.models.layers import masking
from vit_jax.models.mup import growth, logit_factor
from vit_jax.settings import fields

_FAMILIES: dict[type, Family] = {
    module.FAMILY.config: module.FAMILY
    for module in (vit_family, hybrid, bit, swin, mixer, cait, convit, regnet, resnet)
}
FAMILIES = _FAMILIES
VARIANTS: dict[str, ModelConfig] = {
    name: cfg for one in _FAMILIES.values() for name, cfg in one.variants.items()
}


def variant(name: str, **overrides: Any) -> Any:
    """Return a config by name, with fields overridden: `variant("vit_s16_384", num_classes=10)`.

    A number after the last underscore is the resolution where it is no variant's own.

    Raises UserError: an unknown name or field, with the nearest valid ones.
    """
    base = name
    sized = re.fullmatch(r"(.+)_(\d{2,4})", name)
    if name not in VARIANTS and sized:
        base, side = sized[1], int(sized[2])
        overrides = {"image_size": (side, side), **overrides}
    if base not in VARIANTS:
        raise errors.unknown("model", name, VARIANTS)
    return with_fields(VARIANTS[base], overrides, base)


def with_fields(cfg: ModelConfig, overrides: Mapping[str, Any], called: str = "") -> Any:
    """Return a copy of a config with fields changed; `called` is its name in messages.

    Raises:
        UserError: an unknown field or choice, with the nearest valid ones; a value of another kind.
    """
    kinds = fields.annotations(type(cfg))
    for name in overrides:
        if name not in kinds:
            raise errors.unknown(f"field of {called or type(cfg).__name__}", name, kinds)
    read = {
        name: fields.conformed(kinds[name], f"model.{name}", value, getattr(cfg, name))
        for name, value in overrides.items()
    }
    return dataclasses.replace(cfg, **read)


def from_json(tree: Mapping[str, Any]) -> Any:
    """Rebuild a config from the "model" of a `config_json.to_json` tree, which names its class.

    Fields that the writer's version did not have get their defaults.

    Raises UserError: an unknown family, field or choice.
    """
    families = {cls.__name__: cls for cls in _FAMILIES}
    cls = families.get(str(tree.get("family")))
    if cls is None:
        raise errors.unknown("family of models", str(tree.get("family")), families)
    kinds, values = fields.annotations(cls), {}
    for name, value in tree.items():
        if name == "family":
            continue
        if name not in kinds:
            raise errors.unknown(f"field of {cls.__name__}", name, kinds)
        values[name] = fields.conformed(kinds[name], f"model.{name}", value)
    return cls(**values)


def create(cfg: ModelConfig) -> nn.Module:
    """Build the module of a config, after checking it.

    Values written in another way than their fields have them, 64 for (64,), are brought to that, in
    place.

    Raises UserError: no config of a registered family, a value that its field cannot take, fields
    that do not go together.
    """
    refuse_name(cfg, repr(cfg))
    found = family(cfg)
    fields.conform(cfg, "model.")
    found.validate(cfg)
    return found.module(cfg)


def family(cfg: Any) -> Family:
    """Return what is true of a config's family.

    Raises UserError: the config of no registered family.
    """
    found = _FAMILIES.get(type(cfg))
    if found is None:
        valid = ", ".join(kind.__name__ for kind in _FAMILIES)
        name = type(cfg).__name__
        raise UserError(f"{name} is the config of no family in models._FAMILIES; valid: {valid}")
    return found


def refuse_name(cfg: Any, given: str) -> None:
    """Raise UserError for a model's name in place of its config; `given` is how it was written."""
    if isinstance(cfg, str):
        variant(cfg)
        raise UserError(f"{given} is a model's name; give its config, models.variant({cfg!r})")


def input_shape(cfg: ModelConfig) -> tuple[int, int, int]:
    """Return the (H, W, C) of one image."""
    return (*pair(cfg.image_size, "image_size"), cfg.channels)


def patch_grid(cfg: ModelConfig, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (rows, columns) of tokens that a model makes of an image, in its first stage.

    Raises UserError: the patch does not divide the image.
    """
    return family(cfg).grids(cfg, image_size)[0]


def num_prefix(cfg: ModelConfig) -> int:
    """Return how many tokens a model puts before the patches."""
    return family(cfg).num_prefix(cfg)


def hidden_in_training(cfg: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of what tells a model, in training on one image, which patches it sees.

    {} for all; a pass that is given such an array costs as much as one in training.
    """
    rate = getattr(cfg, "patch_drop_rate", 0.0)
    if not rate:
        return {}
    rows, columns = patch_grid(cfg, input_shape(cfg)[:2])
    return {"kept": jax.ShapeDtypeStruct((1, masking.num_kept(rows * columns, rate)), jnp.int32)}


def attention(cfg: ModelConfig, image_size: tuple[int, int] | None = None) -> Attention | None:
    """Return what attends in a model among all patches of an image; None where nothing does."""
    found = family(cfg).attention
    size = pair(cfg.image_size, "image_size") if image_size is None else image_size
    return found(cfg, patch_grid(cfg, size)) if found else None


def init(module: nn.Module, cfg: ModelConfig, key: jax.Array) -> tuple[Any, Mapping[str, Any]]:
    """Initialise (params, model_state); pure, so that `eval_shape` and `jit` can run it."""
    variables = dict(module.init(key, jnp.zeros((1, *input_shape(cfg)), jnp.float32)))
    params = mup.widened(variables.pop("params"), cfg)
    return params, variables


def looped(cfg: ModelConfig) -> Any:
    """Return the config whose stack is a loop, for `init`: bit for bit the same parameters.

    One block is traced and compiled for all: half the time of a start, and less where it is deep.
    """
    return dataclasses.replace(cfg, scan_unroll=1)


def captured(
    module: nn.Module, variables: Mapping[str, Any], image: jax.Array
) -> tuple[Output, dict[str, jax.Array]]:
    """Run a forward pass and return what its layers record of it as well, by name.

    Args:
        module: from `create`.
        variables: {"params": ..., **model_state}.
        image: [B, H, W, C], normalised.

    Returns:
        The output, and "<path of the layer>/<what>", stacked over depth where the layer is:
        "blocks/attn/weights" [L, B, h, N, N] for a ViT, "stage0/block1/attn/weights"
        [B, W, h, N, N] for the W windows of a Swin; the last "map" [B, P, Q, E] of a network
        without tokens. {} for a Mixer.
    """
    output, state = module.apply(variables, image, mutable=[CAPTURED])
    # Flax keeps a tuple of what each call recorded; a layer is called once.
    leaves = trees.named_leaves(state.get(CAPTURED, {}))
    return output, {name.removesuffix("/0"): leaf for name, leaf in leaves}


def abstract(cfg: ModelConfig) -> dict[str, Any]:
    """Return the shapes and dtypes of {"params": ..., **model_state}, allocating nothing."""
    cfg = looped(cfg)
    module = create(cfg)
    # The key too is abstract: a real one is two programs to compile.
    params, state = jax.eval_shape(lambda: init(module, cfg, jax.random.key(0)))
    return {"params": params, **state}
