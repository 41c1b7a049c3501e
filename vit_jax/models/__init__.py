# SPDX-License-Identifier: Apache-2.0
"""Every model family by name: `variant("vit_b16")` is a config, `create(config)` its module."""

import dataclasses
import functools
import importlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax import errors, trees
from vit_jax.errors import UserError
from vit_jax.models import facts, mup
from vit_jax.models.base import CAPTURED, DType, ModelConfig, Output, Remat, pair
from vit_jax.models.facts import Attention, Family
from vit_jax.models.families.vit_config import ViTConfig
from vit_jax.models.layers import masking
from vit_jax.models.mup import growth, logit_factor
from vit_jax.settings import fields

if TYPE_CHECKING:  # what `__getattr__` imports, for editors and type checkers
    from vit_jax.models.families.bit import BiTConfig
    from vit_jax.models.families.cait import CaiTConfig
    from vit_jax.models.families.convit import ConViTConfig
    from vit_jax.models.families.convnext import ConvNeXtConfig
    from vit_jax.models.families.hiera import HieraConfig
    from vit_jax.models.families.hybrid import HybridConfig
    from vit_jax.models.families.mixer import MixerConfig
    from vit_jax.models.families.regnet import RegNetConfig
    from vit_jax.models.families.resnet import ResNetConfig
    from vit_jax.models.families.swin import SwinConfig

    VARIANTS: Mapping[str, ModelConfig]

# What the names of pairs begin with (`models.two_towers`); none of a network alone does.
PAIRS = ("clip_", "openclip_", "siglip_", "siglip2_", "pe_core_")
# The class of a family's configs, and the family's file in families/. To add one, see
# docs/add_a_model.md. A file is imported when its family is asked for: a run needs one.
FAMILIES = {
    "ViTConfig": "vit_family",
    "HybridConfig": "hybrid",
    "BiTConfig": "bit",
    "SwinConfig": "swin",
    "HieraConfig": "hiera",
    "MixerConfig": "mixer",
    "CaiTConfig": "cait",
    "ConViTConfig": "convit",
    "RegNetConfig": "regnet",
    "ResNetConfig": "resnet",
    "ConvNeXtConfig": "convnext",
}


def __getattr__(name: str) -> Any:
    if name in FAMILIES:
        return _family(name).config
    if name == "VARIANTS":
        return _variants()
    raise AttributeError(f"vit_jax.models has no {name!r}")


def _variants() -> dict[str, ModelConfig]:
    return {name: cfg for kind in FAMILIES for name, cfg in _family(kind).variants.items()}


def _family(config: str) -> Family:
    """Import the family of a class of configs, by the name of the class."""
    return importlib.import_module(f"{__name__}.families.{FAMILIES[config]}").FAMILY


def config_class(name: str) -> type[ModelConfig]:
    """Return the class of a family's configs by its name.

    Raises UserError: an unknown name, with the nearest valid one.
    """
    if name not in FAMILIES:
        raise errors.unknown("family of models", name, FAMILIES)
    return _family(name).config


def _named(name: str) -> ModelConfig | None:
    """Return a named config; of the families in variants.tsv it imports that config's alone."""
    listed = facts.listed()
    others = FAMILIES.keys() - set(listed.values())
    for kind in [listed[name]] if name in listed else others:
        if name in (found := _family(kind).variants):
            return found[name]
    return None


def variant(name: str, **overrides: Any) -> Any:
    """Return a config by name, with fields overridden: `variant("vit_s16_384", num_classes=10)`.

    A number after the last underscore is the resolution where it is no variant's own.

    Raises UserError: an unknown name or field, with the nearest valid ones.
    """
    base, found = name, _named(name)
    sized = re.fullmatch(r"(.+)_(\d{2,4})", name)
    if found is None and sized:
        base, side = sized[1], int(sized[2])
        overrides, found = {"image_size": (side, side), **overrides}, _named(base)
    if found is None:
        raise errors.unknown("model", name, _variants())
    return with_fields(found, overrides, base)


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
    cls = config_class(str(tree.get("family")))
    return with_fields(cls(), {name: value for name, value in tree.items() if name != "family"})


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
    name = type(cfg).__name__
    found = _family(name) if name in FAMILIES else None
    if found is None or found.config is not type(cfg):
        valid = ", ".join(FAMILIES)
        raise UserError(f"{name} is the config of no family in models.FAMILIES; valid: {valid}")
    return found


def refuse_name(cfg: Any, given: str) -> None:
    """Raise UserError for a model's name in place of its config; `given` is how it was written."""
    if isinstance(cfg, str):
        variant(cfg)
        raise UserError(f"{given} is a model's name; give its config, models.variant({cfg!r})")


def input_shape(cfg: ModelConfig) -> tuple[int, int, int]:
    """Return the (H, W, C) of one image."""
    return (*pair(cfg.image_size, "image_size"), cfg.channels)


def native_patch(cfg: ModelConfig) -> tuple[int, int]:
    """Return the (rows, columns) of a patch, of a model of images of any size; (0, 0) of others."""
    return pair(getattr(cfg, "patch", ()), "patch") if getattr(cfg, "native", False) else (0, 0)


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
    cfg = looped(cfg)  # which nobody else holds
    create(cfg)  # says what is wrong with it
    found = _abstract(cfg, jax.sharding.get_abstract_mesh())
    return jax.tree.map(lambda leaf: leaf, found)  # whose dicts are the caller's


# To read weights, to plan and to count, one asks for the same shapes again: each time is a trace.
@functools.lru_cache(maxsize=32)
def _abstract(cfg: ModelConfig, mesh: Any) -> dict[str, Any]:
    """Trace a model's initial values; `mesh` is what is set, of which shapes tell."""
    module = create(cfg)
    # The key too is abstract: a real one is two programs to compile.
    params, state = jax.eval_shape(lambda: init(module, cfg, jax.random.key(0)))
    return {"params": params, **state}
