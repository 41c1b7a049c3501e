# SPDX-License-Identifier: Apache-2.0
"""Every model family by name: `variant("vit_b16")` is a config, `create(config)` its module."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax import errors, fields, trees
from vit_jax.errors import UserError
from vit_jax.models import (
    bit,
    cait,
    clip,
    convit,
    deit,
    hybrid,
    mixer,
    mup,
    regnet,
    resnet,
    swin,
    vit,
    vit_sizes,
)
from vit_jax.models.base import DType, ModelConfig, Output, Remat, grid, pair
from vit_jax.models.bit import BiTConfig
from vit_jax.models.cait import CaiTConfig
from vit_jax.models.convit import ConViTConfig
from vit_jax.models.hybrid import HybridConfig
from vit_jax.models.layers.capture import COLLECTION
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.mup import growth, logit_factor
from vit_jax.models.regnet import RegNetConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.swin import SwinConfig
from vit_jax.models.vit import ViTConfig

# A family: its config class, its module, its named variants, its check.
_FAMILIES: dict[
    type, tuple[Callable[[Any], nn.Module], Mapping[str, Any], Callable[[Any], None]]
] = {
    ViTConfig: (vit.ViT, vit_sizes.VARIANTS | deit.VARIANTS | clip.VARIANTS, vit.validate),
    HybridConfig: (hybrid.Hybrid, hybrid.VARIANTS, hybrid.validate),
    BiTConfig: (bit.BiT, bit.VARIANTS, bit.validate),
    SwinConfig: (swin.Swin, swin.VARIANTS, swin.validate),
    MixerConfig: (mixer.Mixer, mixer.VARIANTS, mixer.validate),
    CaiTConfig: (cait.CaiT, cait.VARIANTS, cait.validate),
    ConViTConfig: (convit.ConViT, convit.VARIANTS, convit.validate),
    RegNetConfig: (regnet.RegNet, regnet.VARIANTS, regnet.validate),
    ResNetConfig: (resnet.ResNet, resnet.VARIANTS, resnet.validate),
}
FAMILIES = _FAMILIES
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

    Raises:
        UserError: an unknown family, field or choice.
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
        values[name] = fields.conformed(kinds[name], f"model.{name}", _as_tuple(value))
    return cls(**values)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def create(cfg: ModelConfig) -> nn.Module:
    """Build the module of a config, after checking it.

    Values written in another way than their fields have them, 64 for (64,), are brought to that, in
    place.

    Raises:
        UserError: no config of a registered family, a value that its field cannot take, fields
            that do not go together.
    """
    refuse_name(cfg, repr(cfg))
    family = _FAMILIES.get(type(cfg))
    if family is None:
        raise UserError(
            f"{type(cfg).__name__} is the config of no family; add it to _FAMILIES in "
            "vit_jax/models/__init__.py, or take one of "
            f"{', '.join(known.__name__ for known in _FAMILIES)}"
        )
    module, _, validate = family
    fields.conform(cfg, "model.")
    validate(cfg)
    return module(cfg)


def refuse_name(cfg: Any, given: str, where: str = "") -> None:
    """Refuse the name of a model in place of its config.

    Args:
        cfg: what may be a name.
        given: how it was written.
        where: says where a config can be written, if not there.

    Raises:
        UserError: how to write it; of a name that is unknown too, the nearest valid ones.
    """
    if isinstance(cfg, str):
        variant(cfg)
        raise UserError(
            f"{given} is a model's name; give its config, models.variant({cfg!r}){where}"
        )


def input_shape(cfg: ModelConfig) -> tuple[int, int, int]:
    """Return the (H, W, C) of one image."""
    return (*pair(cfg.image_size, "image_size"), cfg.channels)


def patch_grid(cfg: Any, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (rows, columns) of tokens that a transformer or a Mixer makes of an image.

    A Swin's are those of its first stage.

    Raises:
        UserError: the patch does not divide the image.
    """
    if isinstance(cfg, HybridConfig):
        return hybrid.token_grid(cfg, image_size)
    return grid(image_size, pair(cfg.patch, "patch"))


def num_prefix(cfg: ModelConfig) -> int:
    """Return how many tokens a ViT, DeiT or hybrid puts before the patches; others put none."""
    if not isinstance(cfg, ViTConfig):
        return 0
    return int(cfg.class_token) + int(cfg.distilled) + cfg.num_registers


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
    output, state = module.apply(variables, image, mutable=[COLLECTION])
    # Flax keeps a tuple of what each call recorded; a layer is called once.
    leaves = trees.named_leaves(state.get(COLLECTION, {}))
    return output, {name.removesuffix("/0"): leaf for name, leaf in leaves}


def abstract(cfg: ModelConfig) -> dict[str, Any]:
    """Return the shapes and dtypes of {"params": ..., **model_state}, allocating nothing."""
    cfg = looped(cfg)
    module = create(cfg)
    # The key too is abstract: a real one is two programs to compile.
    params, state = jax.eval_shape(lambda: init(module, cfg, jax.random.key(0)))
    return {"params": params, **state}


__all__ = [
    "FAMILIES",
    "VARIANTS",
    "BiTConfig",
    "CaiTConfig",
    "ConViTConfig",
    "DType",
    "HybridConfig",
    "MixerConfig",
    "ModelConfig",
    "Output",
    "RegNetConfig",
    "Remat",
    "ResNetConfig",
    "SwinConfig",
    "ViTConfig",
    "abstract",
    "captured",
    "create",
    "from_json",
    "growth",
    "init",
    "input_shape",
    "logit_factor",
    "looped",
    "num_prefix",
    "pair",
    "patch_grid",
    "refuse_name",
    "variant",
    "with_fields",
]
