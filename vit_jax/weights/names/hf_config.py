# SPDX-License-Identifier: Apache-2.0
"""transformers' config.json of its Vision Transformers and ConvNeXts: our config of one.

A file leaves out what its class has by default, so the defaults of transformers 5.23's classes
stand here. What is not in the file at all, which heads and tokens there are, the keys of the
weights say.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from vit_jax.errors import UserError, shown, unknown
from vit_jax.models import ConvNeXtConfig, ModelConfig, ViTConfig
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed, PosResize
from vit_jax.models.layers.rope import Rope
from vit_jax.weights.layout import Shape
from vit_jax.weights.names.hf import LAYOUTS, SavedNames, prefix

_VIT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}
_DINOV2 = {
    **{key: value for key, value in _VIT.items() if key != "intermediate_size"},
    "mlp_ratio": 4,
    "layer_norm_eps": 1e-6,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
}
_DINOV3 = {
    **{key: value for key, value in _VIT.items() if key != "qkv_bias"},
    "hidden_size": 384,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
    "layerscale_value": 1.0,
    "use_gated_mlp": False,
    "num_register_tokens": 0,
}
_SIGLIP = {
    **{key: value for key, value in _VIT.items() if key != "qkv_bias"},
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_CONVNEXT = {
    "hidden_sizes": [96, 192, 384, 768],
    "depths": [3, 3, 9, 3],
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_scale_init_value": 1e-6,
    "image_size": 224,
    "patch_size": 4,
    "num_channels": 3,
}
_CLIP = {**_SIGLIP, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_AIMV2 = {
    **{key: value for key, value in _VIT.items() if key != "layer_norm_eps"},
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 2816,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "patch_size": 14,
    "qkv_bias": False,
    "mlp_bias": False,
    "use_head": True,
    "is_native": False,
}
_EOMT = {
    **{key: value for key, value in _DINOV2.items() if key != "qkv_bias"},
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 640,
    "num_register_tokens": 4,
    "num_queries": 200,
    "num_blocks": 4,
    "num_upscale_blocks": 2,
}
_EOMT_DINOV3 = {
    **{key: value for key, value in _DINOV3.items() if key != "rope_theta"},
    **{key: value for key, value in _EOMT.items() if key not in ("mlp_ratio", "use_swiglu_ffn")},
    "intermediate_size": 4096,
}


class Kind(NamedTuple):
    """One of transformers' model types."""

    layout: str  # of `hf.LAYOUTS`
    defaults: Mapping[str, Any]  # of its config's class, which a file may leave out


KINDS = {
    "vit": Kind("vit", _VIT),
    "deit": Kind("vit", _VIT),
    "vit_mae": Kind("vit", _VIT),
    "ijepa": Kind("vit", _VIT),
    "dinov2": Kind("dinov2", {**_DINOV2, "patch_size": 14}),
    "dinov2_with_registers": Kind("dinov2", {**_DINOV2, "num_register_tokens": 4}),
    "dinov3_vit": Kind("dinov3", _DINOV3),
    "siglip_vision_model": Kind("siglip", _SIGLIP),
    "siglip2_vision_model": Kind("siglip", {**_SIGLIP, "num_patches": 256}),
    "clip_vision_model": Kind("clip", _CLIP),
    "convnext": Kind("convnext", _CONVNEXT),
    "convnextv2": Kind("convnext", _CONVNEXT),
    "dinov3_convnext": Kind("dinov3_convnext", {**_CONVNEXT, "layer_norm_eps": 1e-6}),
    "aimv2_vision_model": Kind("aimv2", _AIMV2),
    "eomt": Kind("eomt", _EOMT),
    "eomt_dinov3": Kind("eomt_dinov3", _EOMT_DINOV3),
}
# Two towers, the image's under `vision_config`.
_TOWERS = {
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
    "clip": "clip_vision_model",
    "aimv2": "aimv2_vision_model",
}
# An encoder below `backbone_config` and a head of every pixel beside it (`names.hf_depth`).
DENSE = ("dpt", "depth_anything")
_BACKBONES = ("dinov2", "dinov2_with_registers")
ACTS = {
    "gelu": Gelu.ERF,
    "gelu_pytorch_tanh": Gelu.TANH,
    "gelu_new": Gelu.TANH,
    "gelu_fast": Gelu.TANH,
    "quick_gelu": Gelu.QUICK,
}
# What no config needs: a hostile one must not decide how much memory is used.
_MOST = {
    "num_queries": 2**14,
    "num_upscale_blocks": 8,
    "num_hidden_layers": 2**10,
    "num_channels": 2**10,
    "num_classes": 2**20,
}
_MOST_SIDE = 2**16
_MOST_STAGES = 16


def is_transformers(tree: Mapping[str, Any]) -> bool:
    """Return whether a config.json is transformers', and not timm's."""
    return "model_type" in tree and "architecture" not in tree


class Facts:
    """Values of a config.json, with the defaults of its kind, each checked as it is asked for."""

    def __init__(self, tree: Mapping[str, Any], source: str) -> None:
        """Choose the image's tower; `source` is the file's name in messages.

        Raises UserError: a model type that is not known here.
        """
        kind = str(tree.get("model_type"))
        if kind in _TOWERS:
            kind, tree = _TOWERS[kind], _tower(tree, source)
        if kind in DENSE:
            kind, tree = _backbone(tree, source)
        if kind not in KINDS:
            valid = [*KINDS, *_TOWERS, *DENSE]
            raise unknown(f"model_type in {source}:", shown(kind[:80]), valid)
        self.kind, self.source = kind, source
        self._values = {**KINDS[kind].defaults, **tree}
        if kind == "eomt_dinov3":
            rope: Any = tree.get("rope_parameters")
            self._values["rope_theta"] = (rope if isinstance(rope, dict) else {}).get(
                "rope_theta", _DINOV3["rope_theta"]
            )

    @property
    def layout(self) -> SavedNames:
        """Its layout of weights."""
        return LAYOUTS[KINDS[self.kind].layout]

    def wrong(self, key: str, must: str) -> UserError:
        """Build the error for a value."""
        value = shown(repr(self._values.get(key))[:80])
        return UserError(f"{self.source}: {key}={value} {must}")

    def integer(self, key: str) -> int:
        """Return a size."""
        value, most = self._values.get(key), _MOST.get(key, _MOST_SIDE)
        if type(value) is not int or not 1 <= value <= most:
            raise self.wrong(key, f"must be a whole number from 1 to {most:,}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Return sizes, one a stage."""
        values: Any = self._values.get(key)
        fit = isinstance(values, list) and 1 <= len(values) <= _MOST_STAGES
        if not fit or not all(type(n) is int and 1 <= n <= _MOST_SIDE for n in values):
            raise self.wrong(key, f"must hold 1 to {_MOST_STAGES} whole numbers, one a stage")
        return tuple(values)

    def pair(self, key: str) -> tuple[int, ...]:
        """Return a height and a width."""
        value: Any = self._values.get(key)
        sides: list[Any] = value if isinstance(value, list) else [value, value]
        if len(sides) != 2 or not all(type(n) is int and 1 <= n <= _MOST_SIDE for n in sides):
            raise self.wrong(key, f"must be one or two whole numbers from 1 to {_MOST_SIDE:,}")
        return tuple(sides)

    def number(self, key: str) -> float:
        """Return a number that is not negative."""
        value: Any = self._values.get(key)
        if type(value) not in (int, float) or not 0 <= value <= 1e6:
            raise self.wrong(key, "must be a number from 0 to 1e6")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return whether something is so."""
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def act(self) -> Gelu:
        """Return the activation."""
        value = self._values.get("hidden_act")
        if not isinstance(value, str) or value not in ACTS:
            raise unknown(f"hidden_act in {self.source}:", shown(str(value)[:80]), ACTS)
        return ACTS[value]

    def text(self, key: str) -> str:
        """Return a word, as it stands."""
        return str(self._values.get(key))

    def has(self, key: str) -> bool:
        """Return whether the file or its defaults have a value."""
        return self._values.get(key) is not None


def _tower(tree: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    tower = tree.get("vision_config")
    if not isinstance(tower, dict):
        raise UserError(f"{source}: vision_config must hold the image's tower")
    return tower


def _backbone(tree: Mapping[str, Any], source: str) -> tuple[str, Mapping[str, Any]]:
    found = tree.get("backbone_config")
    if found is None and tree.get("model_type") == "dpt" and not tree.get("is_hybrid"):
        return "vit", tree  # the paper's own, whose encoder is a plain ViT
    kind = str(found.get("model_type")) if isinstance(found, dict) else "none"
    if kind not in _BACKBONES or not isinstance(found, dict):
        what = f"a {shown(str(tree.get('model_type')))} of backbone_config {shown(kind[:80])}"
        raise UserError(f"{source}: {what} is not known here; valid: {', '.join(_BACKBONES)}")
    return kind, found


def model(tree: Mapping[str, Any], shapes: Mapping[str, Shape], source: str) -> ModelConfig:
    """Return the config of a repository's image tower.

    Args:
        tree: of its config.json.
        shapes: of its weights, by key.
        source: config.json's name in messages.

    Raises UserError: a model type or a value that no model here has.
    """
    found = Facts(tree, source)
    if "convnext" in found.kind:
        return _convnext(found, shapes)
    before = prefix(found.layout, shapes)
    is_aimv2 = found.layout is LAYOUTS["aimv2"]
    fields: dict[str, Any] = {
        "dim": found.integer("hidden_size"),
        "depth": found.integer("num_hidden_layers"),
        "num_heads": found.integer("num_attention_heads"),
        "channels": found.integer("num_channels"),
        "patch": found.pair("patch_size"),
        "norm_eps": found.number("rms_norm_eps" if is_aimv2 else "layer_norm_eps"),
        "num_classes": _num_classes(found, shapes),
    }
    gated = is_aimv2 or (found.has("use_gated_mlp") and found.flag("use_gated_mlp"))
    fields["gelu"] = Gelu.ERF if gated else found.act()  # a gated MLP has none
    fields["image_size"] = image_size(found)
    if found.has("qkv_bias"):
        fields["qkv_bias"] = found.flag("qkv_bias")
    if found.has("intermediate_size"):
        fields["mlp_dim"] = found.integer("intermediate_size")
    if found.layout is LAYOUTS["dinov2"] or found.layout is LAYOUTS["eomt"]:
        fields |= _dinov2(found, fields["dim"])
    elif found.layout is LAYOUTS["dinov3"] or found.layout is LAYOUTS["eomt_dinov3"]:
        fields |= _dinov3(found, gated=gated)
    elif found.layout is LAYOUTS["vit"]:
        fields["init"] = Init.TIMM
        fields["distilled"] = "distillation_classifier.weight" in shapes
        second = f"{before}embeddings.distillation_token" in shapes
        fields["num_registers"] = int(second and not fields["distilled"])
        if found.kind == "ijepa":
            fields |= {"class_token": False, "pool": Pool.GAP}
    elif found.layout is LAYOUTS["clip"]:
        fields |= {"pre_norm": True, "patch_bias": False}
    elif is_aimv2:
        fields |= _aimv2(found)
    else:
        # transformers classifies the mean of the tokens, whatever else the file holds.
        by_attention = f"{before}head.probe" in shapes and not fields["num_classes"]
        fields |= {"class_token": False, "pool": Pool.MAP if by_attention else Pool.GAP}
    if found.has("num_patches"):  # SigLIP 2's for images of any shape
        side = math.isqrt(found.integer("num_patches"))
        fields |= {"native": True, "base_grid": (side, side), "pos_embed_prefix": False}
        fields["pos_embed_resize"] = PosResize.LINEAR
    return ViTConfig(**fields)


def _convnext(found: Facts, shapes: Mapping[str, Shape]) -> ConvNeXtConfig:
    depths, widths = found.integers("depths"), found.integers("hidden_sizes")
    if len(depths) != len(widths):
        raise found.wrong("depths", f"must have a number for each of {len(widths)} hidden_sizes")
    if found.pair("patch_size") != (4, 4):
        raise found.wrong("patch_size", "is not known here: the stem's patches are 4x4")
    own = found.kind == "dinov3_convnext"
    eps, is_v2 = found.number("layer_norm_eps"), found.kind == "convnextv2"
    return ConvNeXtConfig(
        depths=depths,
        widths=widths,
        channels=found.integer("num_channels"),
        image_size=found.pair("image_size"),
        gelu=found.act(),
        grn=is_v2,
        layer_scale=0.0 if is_v2 else found.number("layer_scale_init_value"),
        # All norms but the last have a constant there, not the config's.
        norm_eps=eps if own else 1e-6,
        head_norm_eps=eps,
        num_classes=_num_classes(found, shapes),
    )


def _dinov2(found: Facts, dim: int) -> dict[str, Any]:
    hidden = int(dim * found.number("mlp_ratio"))
    gated = found.flag("use_swiglu_ffn")
    fields: dict[str, Any] = {
        "mlp_dim": gated_width(hidden) if gated else hidden,
        "mlp": MlpKind.SWIGLU if gated else MlpKind.GELU,
        "layer_scale": found.number("layerscale_value") or 1.0,
        "init": Init.TIMM,
    }
    if found.kind == "dinov2_with_registers" or found.kind == "eomt":
        fields |= {"num_registers": found.integer("num_register_tokens"), "pos_embed_prefix": False}
    return fields


def gated_width(hidden: int) -> int:
    """Return the width of DINOv2's SwiGLU in place of a plain hidden layer's."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _dinov3(found: Facts, *, gated: bool) -> dict[str, Any]:
    for key in ("proj_bias", "mlp_bias"):
        if not found.flag(key):
            raise found.wrong(key, "is not known here: its layers have biases")
    query, key, value = (found.flag(f"{name}_bias") for name in ("query", "key", "value"))
    if query != value or (key and not query):
        raise found.wrong("query_bias", "must be as value_bias, and so where key_bias is true")
    if gated and found.text("hidden_act") != "silu":
        raise found.wrong("hidden_act", "must be silu where use_gated_mlp is true")
    registers = found.number("num_register_tokens")
    return {
        "qkv_bias": query,
        "key_bias": key or not query,
        "mlp": MlpKind.SWIGLU if gated else MlpKind.GELU,
        "layer_scale": found.number("layerscale_value") or 1.0,
        "num_registers": found.integer("num_register_tokens") if registers else 0,
        "pos_embed": PosEmbed.NONE,
        "rope": Rope.DINOV3,
        "rope_theta": found.number("rope_theta"),
        "dynamic_image_size": True,
        "init": Init.VIT5,
    }


def _aimv2(found: Facts) -> dict[str, Any]:
    if found.text("hidden_act") != "silu":
        raise found.wrong("hidden_act", "must be silu: its MLP is gated")
    native = found.flag("is_native")
    return {
        "class_token": False,
        "pool": Pool.QUERY if found.flag("use_head") else Pool.GAP,
        "patch_norm": True,
        "norm": TokenNorm.RMS,
        "mlp": MlpKind.SWIGLU,
        "proj_bias": found.flag("qkv_bias"),  # one value for all of attention
        "mlp_bias": found.flag("mlp_bias"),
        "pos_embed": PosEmbed.SINCOS2D_MAE if native else PosEmbed.LEARNED,
        "dynamic_image_size": native,
        "init": Init.TIMM,
    }


def _num_classes(found: Facts, shapes: Mapping[str, Shape]) -> int:
    """Return the number of classes by the weights' own head; CLIP's projection is none."""
    for key in ("classifier.weight", "cls_classifier.weight"):
        if key in shapes and found.layout is not LAYOUTS["clip"]:
            count = shapes[key][0] if shapes[key] else 0
            if not 1 <= count <= _MOST["num_classes"]:
                raise UserError(f"{found.source}: {key} beside it has {count} classes")
            return count
    return 0


def image_size(found: Facts) -> tuple[int, ...]:
    """Return the (height, width) of the images that a config's positions are for."""
    patch = found.pair("patch_size")
    if not found.has("num_patches"):
        return found.pair("image_size")
    side = math.isqrt(found.integer("num_patches"))  # SigLIP 2 with images of any shape
    return (side * patch[0], side * patch[1])


def class_names(tree: Mapping[str, Any], count: int, source: str) -> tuple[str, ...]:
    """Return the names of K classes; () where id2label says nothing of them.

    Raises UserError: id2label does not name the classes 0 to K - 1.
    """
    names = tree.get("id2label")
    if not count or names is None:
        return ()
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(count)}:
        many = len(names) if isinstance(names, Collection) else 0
        raise UserError(
            f"{source}: id2label must name each of the classes 0 to {count - 1:,}; it has {many:,}"
        )
    found = [names[str(i)] for i in range(count)]
    if not all(isinstance(name, str) and len(name) <= 1000 for name in found):
        raise UserError(f"{source}: id2label must hold names")
    if all(re.fullmatch(r"LABEL_\d+", name) for name in found):  # transformers' placeholders
        return ()
    return tuple(map(shown, found))
