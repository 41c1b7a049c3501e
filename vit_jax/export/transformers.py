# SPDX-License-Identifier: Apache-2.0
"""A trained ViT or ConvNeXt as a folder that transformers loads: weights, config, preparation."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from vit_jax import models, trees
from vit_jax.errors import UserError, setting
from vit_jax.export import transformers_convnext
from vit_jax.inference.trained import Trained
from vit_jax.models import ConvNeXtConfig, ViTConfig
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d
from vit_jax.models.layers.rope import Rope
from vit_jax.models.losses import Loss
from vit_jax.weights import export
from vit_jax.weights.names import hf, hf_config
from vit_jax.weights.published import hf_images
from vit_jax.weights.readers.repository import CONFIG, WEIGHTS
from vit_jax.weights.resize import positions

# Fields that one of them has in several values, or that change nothing once a model is trained. The
# others must have their defaults.
_SOME = {"dim", "depth", "num_heads", "mlp_dim", "patch", "image_size", "channels", "num_classes"}
_SOME |= {"pool", "class_token", "distilled", "num_registers", "pos_embed", "pos_embed_prefix"}
_SOME |= {
    "pre_norm",
    "patch_bias",
    "qkv_bias",
    "key_bias",
    "layer_scale",
    "mlp",
    "gelu",
    "norm_eps",
}
_SOME |= {"rope", "rope_theta", "pool_prefix", "norm", "patch_norm", "proj_bias", "mlp_bias"}
_FREE = {"dtype", "remat", "scan_unroll", "zero_head", "head_bias", "init", "attention"}
_FREE |= {"dropout_rate", "attention_dropout_rate", "drop_path_rate", "drop_path_rule"}
_FREE |= {"dynamic_image_size", "mup_base_dim", "mup_base_heads"}
_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_pytorch_tanh", Gelu.QUICK: "quick_gelu"}
_CLASSES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("", "DeiTForImageClassificationWithTeacher"),
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    ),
    "dinov3_vit": ("DINOv3ViTModel", ""),
    "siglip_vision_model": ("SiglipVisionModel", ""),
    "siglip": ("", "SiglipForImageClassification"),
    "clip_vision_model": ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    **transformers_convnext.CLASSES,
    "aimv2_vision_model": ("Aimv2VisionModel", ""),
}
# (layout, prefix where there is a head, prefix where there is none)
_LAYOUTS = {
    "vit": ("vit", "vit.", ""),
    "deit": ("vit", "deit.", ""),
    "ijepa": ("vit", "ijepa.", ""),
    "dinov2": ("dinov2", "dinov2.", ""),
    "dinov2_with_registers": ("dinov2", "dinov2_with_registers.", ""),
    "dinov3_vit": ("dinov3", "", ""),
    "siglip_vision_model": ("siglip", "", ""),
    "siglip": ("siglip", "vision_model.", ""),
    "clip_vision_model": ("clip", "vision_model.", "vision_model."),
    **transformers_convnext.LAYOUTS,
    "aimv2_vision_model": ("aimv2", "", ""),
}


def kind(cfg: Any) -> str:
    """Return the model type of transformers' that computes what a config's model does.

    Raises UserError: none does; names the field.
    """
    if isinstance(cfg, ConvNeXtConfig):
        return transformers_convnext.kind(cfg)
    if not isinstance(cfg, ViTConfig):
        name, which = models.family(cfg).name, "only ViTs and ConvNeXts"
        raise UserError(f"{which} are written as transformers has them, and this is a {name}")
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        is_other = field.name not in _SOME | _FREE and value != field.default
        if is_other or value in (PosEmbed.LEARNED2D, PosEmbed.RELATIVE):
            raise UserError(f"no ViT of transformers' has model.{field.name}={value}")
    for field in ("patch", "image_size"):
        sides = models.pair(getattr(cfg, field), field)
        if sides[0] != sides[1]:
            raise UserError(
                f"transformers' files are written for squares, not model.{field}={sides}"
            )
    found = _kind(cfg)
    for field, value in _fixed(cfg, found).items():
        if getattr(cfg, field) != value:
            has = f"transformers' {found} has model.{field}={value}"
            raise UserError(
                f"{has}, not {getattr(cfg, field)}, beside the other fields of this model"
            )
    return found


def _kind(cfg: ViTConfig) -> str:
    if cfg.patch_norm:
        return "aimv2_vision_model"
    if cfg.rope is not Rope.NONE:
        return "dinov3_vit"
    if cfg.distilled:
        return "deit"
    if cfg.pre_norm:
        return "clip_vision_model"
    if not cfg.class_token and cfg.pool is Pool.GAP and cfg.gelu is Gelu.ERF:
        return "ijepa"
    if not cfg.class_token:
        return "siglip" if cfg.num_classes else "siglip_vision_model"
    if cfg.num_registers:
        return "dinov2_with_registers"
    return "dinov2" if cfg.layer_scale else "vit"


def _fixed(cfg: ViTConfig, found: str) -> dict[str, Any]:
    """Return fields that a model type has one value of."""
    fixed: dict[str, Any] = {"pool": Pool.CLS, "pre_norm": False, "rope": Rope.NONE}
    if found == "aimv2_vision_model":
        fixed |= {"pool": cfg.pool if cfg.pool is Pool.QUERY else Pool.GAP, "num_classes": 0}
        fixed |= {"class_token": False, "distilled": False, "num_registers": 0}
        fixed |= {"norm": TokenNorm.RMS, "mlp": MlpKind.SWIGLU, "layer_scale": 0.0}
        return fixed | {"key_bias": True, "proj_bias": cfg.qkv_bias}
    fixed |= {"norm": TokenNorm.LAYER, "proj_bias": True, "mlp_bias": True}
    if found == "dinov3_vit":
        fixed |= {"rope": Rope.DINOV3, "pos_embed": PosEmbed.NONE, "num_classes": 0}
        return fixed | {"class_token": True, "distilled": False, "patch_bias": True}
    fixed |= {"key_bias": True}
    if not found.startswith("dinov2"):
        fixed |= {"mlp": MlpKind.GELU}
    if found in ("vit", "deit", "ijepa"):
        fixed |= {"layer_scale": 0.0, "num_registers": 0}
        fixed |= {"pool": Pool.GAP} if found == "ijepa" else {}
    elif found == "clip_vision_model":
        fixed |= {"pre_norm": True, "patch_bias": False, "layer_scale": 0.0}
        fixed |= {"class_token": True, "num_registers": 0}
    elif found.startswith("siglip"):
        # It classifies the mean of the tokens; without classes it pools as the file says.
        pool = cfg.pool if cfg.pool is Pool.MAP and not cfg.num_classes else Pool.GAP
        fixed |= {"pool": pool, "layer_scale": 0.0}
        fixed |= {"num_registers": 0}
    else:
        fixed["mlp_dim"] = _width(_ratio(cfg) * cfg.dim, cfg)
    return fixed


def _ratio(cfg: ViTConfig) -> int:
    """Return the mlp_ratio, a whole number, with which DINOv2's hidden layer is nearest to ours."""
    ratios = range(1, 2 * cfg.mlp_dim // cfg.dim + 2)
    return min(ratios, key=lambda ratio: abs(_width(ratio * cfg.dim, cfg) - cfg.mlp_dim))


def _width(hidden: int, cfg: ViTConfig) -> int:
    return hf_config.gated_width(hidden) if cfg.mlp is MlpKind.SWIGLU else hidden


def standard(cfg: Any) -> Any:
    """Return the config that `hf_config.model` reads of what is written of this one.

    Raises UserError: no model type computes what it does.
    """
    if isinstance(cfg, ConvNeXtConfig):
        return transformers_convnext.standard(cfg)
    found = kind(cfg)
    fields: dict[str, Any] = {"pos_embed": PosEmbed.LEARNED, "mup_base_dim": 0, "mup_base_heads": 0}
    if found == "dinov3_vit":
        return dataclasses.replace(cfg, layer_scale=cfg.layer_scale or 1.0)
    if found == "aimv2_vision_model":
        native = cfg.pos_embed is PosEmbed.SINCOS2D_MAE
        fields |= {"pos_embed": cfg.pos_embed, "dynamic_image_size": True} if native else {}
        return dataclasses.replace(cfg, **fields, patch_bias=True)
    fields["pos_embed_prefix"] = found != "dinov2_with_registers"
    fields["patch_bias"] = found != "clip_vision_model"
    fields["qkv_bias"] = cfg.qkv_bias or found.startswith(("clip", "siglip"))
    if found.startswith("dinov2"):
        fields["layer_scale"] = cfg.layer_scale or 1.0
    return dataclasses.replace(cfg, **fields)


def to_hf(variables: Mapping[str, Any], cfg: Any) -> dict[str, np.ndarray]:
    """Convert a model's variables to a state_dict of transformers'.

    Values are the same, bit for bit, but for those of registers that have positions, and what
    `export.folded` changes. What transformers holds besides is added: biases of zeros, LayerScale
    of ones, computed positions as a table.

    Raises UserError: no model type of transformers' computes what the model does.
    """
    found, theirs = kind(cfg), standard(cfg)
    leaves = dict(trees.named_leaves(export.folded(variables, cfg)))
    leaves = {name: np.asarray(value) for name, value in leaves.items()}
    if getattr(theirs, "pos_embed", None) is PosEmbed.LEARNED:
        leaves |= dict(_positions(leaves, cfg, theirs))
    for name, leaf in trees.named_leaves(models.abstract(theirs)):
        if name not in leaves:
            fill = np.ones if name.endswith("/gamma") else np.zeros
            leaves[name] = fill(leaf.shape, np.float32)
    if found == "clip_vision_model" and np.any(leaves.get("params/head/bias", 0)):
        raise UserError(
            "transformers' CLIP has no bias in its projection, and this model's head has one; "
            f"write the features: {setting('model.num_classes=0')}"
        )
    layout, with_head, without = _LAYOUTS[found]
    before = with_head if cfg.num_classes else without
    state = hf.state(trees.nest(leaves), theirs, hf.LAYOUTS[layout], before)
    return state | dict(_beside(found, cfg, before))


def _positions(
    leaves: Mapping[str, np.ndarray], cfg: ViTConfig, theirs: ViTConfig
) -> Iterator[tuple[str, np.ndarray]]:
    """Bring the table of positions to what transformers' covers, with the tokens before it."""
    _, grid = positions(cfg)
    length = grid[0] * grid[1]
    table = np.zeros((1, length, cfg.dim), np.float32)
    if cfg.pos_embed in FIXED:
        table = sincos2d(*grid, cfg.dim, cfg.pos_embed)[None]
    elif cfg.pos_embed is PosEmbed.LEARNED:
        table = leaves["params/pos_embed"]
    own = table.shape[1] - length
    prefix, patches = table[:, :own], table[:, own:]
    if theirs.pos_embed_prefix:
        wanted = positions(theirs)[0]
        rows = np.zeros((1, wanted, cfg.dim), np.float32)
        rows[:, :own] = prefix
        yield "params/pos_embed", np.concatenate([rows, patches], axis=1)
        return
    yield "params/pos_embed", patches
    if own:
        first = int(cfg.class_token)
        yield "params/cls_token", leaves["params/cls_token"] + prefix[:, :first]
        yield "params/reg_token", leaves["params/reg_token"] + prefix[:, first:]


def _beside(found: str, cfg: Any, before: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what transformers holds and no output depends on."""
    if found.startswith("dinov2"):
        yield f"{before}embeddings.mask_token", np.zeros((1, cfg.dim), np.float32)
    elif found == "dinov3_vit":
        yield "embeddings.mask_token", np.zeros((1, 1, cfg.dim), np.float32)


def config(cfg: Any, class_names: Sequence[str], *, several: bool = False) -> dict[str, Any]:
    """Return config.json of a model; `several` labels an image may have.

    Raises UserError: no model type of transformers' computes what the model does.
    """
    found = kind(cfg)
    is_vit = isinstance(cfg, ViTConfig)
    tree = _sizes(cfg, found) if is_vit else transformers_convnext.sizes(cfg)
    names = {}
    if cfg.num_classes and found != "clip_vision_model":
        ids = {str(i): name for i, name in enumerate(class_names)}
        names = {"id2label": ids, "label2id": {name: int(i) for i, name in ids.items()}}
        names["problem_type"] = "multi_label_classification" if several else None
    architecture = _CLASSES[found][bool(cfg.num_classes)]
    return {"model_type": found, "architectures": [architecture], **tree, **names}


def _sizes(cfg: ViTConfig, found: str) -> dict[str, Any]:
    theirs = standard(cfg)
    tree: dict[str, Any] = {
        "hidden_size": cfg.dim,
        "num_hidden_layers": cfg.depth,
        "num_attention_heads": cfg.num_heads,
        "intermediate_size": cfg.mlp_dim,
        "hidden_act": _ACTS[cfg.gelu],
        "layer_norm_eps": cfg.norm_eps,
        "image_size": models.pair(cfg.image_size, "image_size")[0],
        "patch_size": models.pair(cfg.patch, "patch")[0],
        "num_channels": cfg.channels,
    }
    if found in ("vit", "deit", "ijepa") or found.startswith("dinov2"):
        tree["qkv_bias"] = cfg.qkv_bias
    if found.startswith("dinov2"):
        del tree["intermediate_size"]
        tree |= {"mlp_ratio": _ratio(cfg), "layerscale_value": theirs.layer_scale}
        tree |= {"use_swiglu_ffn": cfg.mlp is MlpKind.SWIGLU}
    if found == "dinov3_vit":
        keys = cfg.qkv_bias and cfg.key_bias
        gated = cfg.mlp is MlpKind.SWIGLU
        tree |= {"query_bias": cfg.qkv_bias, "key_bias": keys, "value_bias": cfg.qkv_bias}
        tree |= {"use_gated_mlp": gated, "layerscale_value": theirs.layer_scale}
        tree |= {"rope_theta": cfg.rope_theta, "num_register_tokens": cfg.num_registers}
        if gated:
            tree["hidden_act"] = "silu"
    if found == "dinov2_with_registers":
        tree["num_register_tokens"] = cfg.num_registers
    if found == "aimv2_vision_model":
        tree |= {"rms_norm_eps": tree.pop("layer_norm_eps"), "hidden_act": "silu"}
        tree |= {"qkv_bias": cfg.qkv_bias, "mlp_bias": cfg.mlp_bias}
        tree |= {"use_head": cfg.pool is Pool.QUERY}
        tree |= {"is_native": theirs.pos_embed is PosEmbed.SINCOS2D_MAE}
    if found == "clip_vision_model" and cfg.num_classes:
        tree["projection_dim"] = cfg.num_classes
    if found.startswith("siglip"):
        tree["vision_use_head"] = cfg.pool is Pool.MAP
    if found == "siglip":
        return {"vision_config": {"model_type": "siglip_vision_model", **tree}}
    return tree


def check(trained: Trained) -> None:
    """Refuse, before weights are read, what no model of transformers' computes.

    Raises UserError: naming the field that stands in the way.
    """
    config(trained.model, trained.class_names)
    _images(trained)


def make(trained: Trained) -> dict[str, bytes]:
    """Return the files of a model with its weights that `check` lets pass.

    Raises UserError: the weights need what transformers lacks.
    """
    state = to_hf(trained.variables, trained.model)
    several = trained.loss is not Loss.SOFTMAX
    described = config(trained.model, trained.class_names, several=several)
    if trained.gives_numbers:
        described["problem_type"] = "regression"
    return {
        WEIGHTS: safetensors.numpy.save(state, metadata={"format": "pt"}),
        hf_images.FILE: _json(_images(trained)),
        CONFIG: _json(described),
    }


def _images(trained: Trained) -> dict[str, Any]:
    size, channels = trained.image_size, trained.channels
    if trained.reading.bands:
        other = "the image processors of transformers take pictures, not data.bands"
        raise UserError(f"{other}; choose --format=onnx, stablehlo or timm")
    return hf_images.written(trained.mean, trained.std, trained.transform, size, channels)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
