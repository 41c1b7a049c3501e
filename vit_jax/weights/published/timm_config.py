# SPDX-License-Identifier: Apache-2.0
"""timm's config.json: the network that it names, as a config of ours.

An architecture is one of timm's functions; architectures.tsv says what each is here, and
tests/parity/test_published_names.py that it is. An export of this package lies beside its
export.json, which has the config itself.
"""

import ast
import functools
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.data import (
    AS_SHOWN,
    Background,
    Reading,
    TransformConfig,
    check_transform,
    check_units,
    classes,
)
from vit_jax.errors import UserError, shown, unknown
from vit_jax.models import ModelConfig, ViTConfig, facts
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.losses import Loss
from vit_jax.weights import export
from vit_jax.weights.published import table
from vit_jax.weights.published.table import Preprocessing

TABLE = Path(__file__).with_name("architectures.tsv")
EXPORT = "export.json"  # what this package writes beside
_MOST = 2**20


@functools.cache
def architectures() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Return timm's architectures: name -> (variant, fields that differ from it)."""
    found = {}
    lines = TABLE.read_text("utf-8").splitlines()
    for name, variant, fields in (line.split("\t") for line in lines if line[0] != "#"):
        values = dict(field.split("=") for field in fields.split())
        found[name] = (variant, {key: _value(value) for key, value in values.items()})
    return found


def _value(written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except ValueError:
        return written  # the value of an enum


def model(tree: Mapping[str, Any], source: str) -> ModelConfig:
    """Return the config of timm's network in a config.json; `source` is its name in messages.

    Raises UserError: an architecture or an argument of timm's that is not known here.
    """
    name = tree.get("architecture")
    known = architectures()
    if not isinstance(name, str) or name not in known:
        raise unknown(f"architecture in {source}:", shown(str(name)[:80]), known)
    variant, fields = known[name]
    cfg = models.variant(variant, **fields)
    about = _dict(tree, "pretrained_cfg", source)
    size = about.get("input_size", [3, *models.pair(cfg.image_size, "image_size")])
    if not (isinstance(size, list) and len(size) == 3 and all(_is_count(n) for n in size)):
        raise _wrong(source, "input_size", size, "must be [channels, height, width]")
    count = tree.get("num_classes", about.get("num_classes", cfg.num_classes))
    if not (_is_count(count) or count == 0):
        raise _wrong(source, "num_classes", count, "must be a whole number")
    given = {"channels": size[0], "image_size": tuple(size[1:]), "num_classes": count}
    cfg = models.with_fields(cfg, given, name)
    args = {k: v for k, v in _dict(tree, "model_args", source).items() if k not in _TRAINING}
    return _with_args(cfg, args, source) if args else cfg


def by_name(name: str) -> tuple[ModelConfig, Mapping[str, Any]] | None:
    """Return timm's network of a name, and its pretrained_cfg with the whole "name".

    The name is "vit_base_patch16_224.augreg_in21k", also after "timm/"; without a tag it is timm's
    default of the architecture. None: no architecture that is known here.

    Raises UserError: an unknown tag, with the nearest.
    """
    name = name.removeprefix("timm/")
    architecture, _, tag = name.partition(".")
    if architecture not in architectures():
        return None
    found = table.named(name)
    if found is None and tag:
        raise unknown("weights of timm's", name, table.tags(architecture))
    full, about = found or (name, {})
    tree = {"architecture": architecture, "pretrained_cfg": about}
    return model(tree, full), {**about, "name": full}


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MOST


def _dict(tree: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    value = tree.get(key) or {}
    if not isinstance(value, dict):
        raise _wrong(source, key, value, "must be an object")
    return value


def _wrong(source: str, key: str, value: Any, must: str) -> UserError:
    return UserError(f"{source}: {key}={shown(repr(value)[:80])} {must}")


# Arguments that change nothing once a network is trained.
_TRAINING = {"drop_rate", "drop_path_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate"}
_TRAINING |= {"weight_init", "fix_init", "strict_img_size", "patch_drop_rate"}
_ACTS = {"gelu": Gelu.ERF, "gelu_tanh": Gelu.TANH, "quick_gelu": Gelu.QUICK}
_POOLS = {"token": Pool.CLS, "avg": Pool.GAP, "map": Pool.MAP}
_POSITIONS = {"learn": PosEmbed.LEARNED, "none": PosEmbed.NONE, "": PosEmbed.NONE}
# Arguments of timm's ViT -> our field, and a function from the argument to the field's value.
_ARGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{
        name: (name, lambda value: value)
        for name in ("depth", "num_heads", "qkv_bias", "class_token", "fc_norm", "pre_norm")
    },
    "qk_norm": ("qk_norm", lambda value: value),
    "embed_dim": ("dim", lambda value: value),
    "in_chans": ("channels", lambda value: value),
    "num_classes": ("num_classes", lambda value: value),
    "img_size": ("image_size", lambda value: _sides(value)),
    "patch_size": ("patch", lambda value: _sides(value)),
    "act_layer": ("gelu", _ACTS.__getitem__),
    "init_values": ("layer_scale", lambda value: float(value or 0)),
    "dynamic_img_size": ("dynamic_image_size", lambda value: value),
    "reg_tokens": ("num_registers", lambda value: value),
    "global_pool": ("pool", _POOLS.__getitem__),
    "pool_include_prefix": ("pool_prefix", lambda value: value),
    "no_embed_class": ("pos_embed_prefix", lambda value: not value),
    "pos_embed": ("pos_embed", _POSITIONS.__getitem__),
}


def _sides(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else (value, value)


def _with_args(cfg: ModelConfig, args: Mapping[str, Any], source: str) -> ModelConfig:
    if not isinstance(cfg, ViTConfig):
        raise UserError(
            f"{source}: model_args of {models.family(cfg).name} are read of this package's exports "
            f"alone, by their {EXPORT}; name the model and its fields"
        )
    fields: dict[str, Any] = {}
    for name, value in args.items():
        if name == "mlp_ratio" or (name == "fc_norm" and value is None):
            continue
        if name not in _ARGS:
            raise unknown(f"model_args in {source}:", shown(name[:80]), [*_ARGS, "mlp_ratio"])
        field, read = _ARGS[name]
        try:
            fields[field] = read(value)
        except (KeyError, TypeError, ValueError):
            raise _wrong(source, name, value, "is not known here") from None
    if "pre_norm" in fields:
        fields["patch_bias"] = not fields["pre_norm"]  # timm ties the two
    if "pool" in fields and args.get("fc_norm") is None:
        # timm's own choice, but where the architecture has made another
        others = cfg.pool is Pool.GAP and not cfg.fc_norm
        fields["fc_norm"] = fields["pool"] is Pool.GAP and not others
    found: Any = models.with_fields(cfg, fields, source)
    # timm keeps the ratio. Where one layer of its ViT gives gate and value it is of both; in its
    # Eva, which has names of its own for LayerScale, it is of each.
    form = models.family(cfg).timm_form(cfg)
    parts = 2 if form.packed and not form.gammas else 1
    ratio = args.get("mlp_ratio")
    if ratio is None:
        ratio = parts * facts.ratio(cfg.mlp_dim, cfg.dim)
    if type(ratio) not in (int, float) or not 0 < ratio <= _MOST:
        raise _wrong(source, "mlp_ratio", ratio, "must be a number")
    return models.with_fields(found, {"mlp_dim": int(found.dim * ratio) // parts}, source)


def class_names(tree: Mapping[str, Any], count: int, source: str) -> tuple[str, ...]:
    """Return the names of K classes in a config.json of timm's form; () where it has none.

    Raises UserError: another number of names than classes, or what are no names.
    """
    about = _dict(tree, "pretrained_cfg", source)
    names = tree.get("label_names") or about.get("label_names")
    if not count or not names:
        return ()
    words = tree.get("label_descriptions") or about.get("label_descriptions") or {}
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or not isinstance(words, dict) or len(names) != count:
        many = f"{len(names):,}" if isinstance(names, Collection) else "none"
        raise UserError(f"{source}: label_names must name {count:,} classes; it names {many}")
    return classes.readable([shown(str(words.get(name, name))[:1000]) for name in names])


class Exported(NamedTuple):
    """What the export.json of this package says of a network."""

    model: ModelConfig
    preprocessing: Preprocessing
    loss: Loss


def exported(tree: Mapping[str, Any], source: str) -> Exported | None:
    """Read an export.json; None of an export without timm's weights.

    Raises UserError: a version or a hand has written it otherwise.
    """
    if tree.get("format") != "timm":
        return None
    about, given = _dict(tree, "model", source), dict(_dict(tree, "input", source))
    try:
        cfg = export.standard(models.from_json(about))
        if models.family(cfg).timm_zeros(cfg):  # written as a bias of zeros
            cfg = models.with_fields(cfg, {"patch_bias": True})
        models.create(cfg)
        fields = {key: given[key] for key in ("crop", "crop_ratio", "crop_rule", "resize")}
        transform = _transform(fields)
        check_transform(transform, "input")
        mean, std = (tuple(map(float, given[key])) for key in ("mean", "std"))
        if not (all(map(math.isfinite, (*mean, *std))) and min(std, default=0) > 0):
            raise ValueError("mean and std must be numbers, std above 0")
        check_units("mean", mean)
        check_units("std", std)
        reading = Reading(  # an earlier version predicted by the defaults
            Background(given.get("background", AS_SHOWN.background)),
            bool(given.get("upright", AS_SHOWN.upright)),
        )
        loss = Loss(tree.get("loss", Loss.SOFTMAX))
    except (UserError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{source} is not as vit_jax export writes it: {reason}") from None
    height, width = models.pair(cfg.image_size, "image_size")
    size = height, width
    preprocessing = Preprocessing(mean, std, transform, size, source, reading)
    return Exported(cfg, preprocessing, loss)


def _transform(given: Mapping[str, Any]) -> TransformConfig:
    kinds: Any = {f: type(getattr(TransformConfig(), f)) for f in given}
    return TransformConfig(**{key: kinds[key](value) for key, value in given.items()})
