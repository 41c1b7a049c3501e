# SPDX-License-Identifier: Apache-2.0
"""Which ConvNeXt of transformers' a config becomes, and its config.json."""

import dataclasses
from typing import Any

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ConvNeXtConfig
from vit_jax.models.layers.mlp import Gelu

# Fields that one of them has in several values, or that change nothing once a model is trained. The
# others must have their defaults.
_SOME = {"depths", "widths", "gelu", "grn", "layer_scale", "norm_eps", "head_norm_eps"}
_SOME |= {"image_size", "channels", "num_classes"}
_FREE = {"dtype", "remat", "scan_unroll", "zero_head", "head_bias", "conv_mlp"}
_FREE |= {"dropout_rate", "drop_path_rate"}
_EPS = 1e-6  # of all norms but the last, in ConvNext and ConvNextV2
_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_pytorch_tanh", Gelu.QUICK: "quick_gelu"}
CLASSES = {
    "convnext": ("ConvNextModel", "ConvNextForImageClassification"),
    "convnextv2": ("ConvNextV2Model", "ConvNextV2ForImageClassification"),
    "dinov3_convnext": ("DINOv3ConvNextModel", ""),
}
# (layout, prefix where there is a head, prefix where there is none)
LAYOUTS = {
    "convnext": ("convnext", "convnext.", ""),
    "convnextv2": ("convnext", "convnextv2.", ""),
    "dinov3_convnext": ("dinov3_convnext", "", ""),
}


def kind(cfg: ConvNeXtConfig) -> str:
    """Return the model type that computes what a config's model does.

    Without a head that is DINOv3's where it can be: its tokens are normalised, as ours are.

    Raises UserError: none does; names the field.
    """
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if field.name not in _SOME | _FREE and value != field.default:
            raise UserError(f"no ConvNeXt of transformers' has model.{field.name}={value}")
    sides = models.pair(cfg.image_size, "image_size")
    if sides[0] != sides[1]:
        raise UserError(
            f"transformers' files are written for squares, not model.image_size={sides}"
        )
    if cfg.grn and cfg.layer_scale:
        raise UserError("transformers' convnextv2 has model.layer_scale=0.0 beside model.grn")
    if not (cfg.grn or cfg.num_classes) and cfg.norm_eps == cfg.head_norm_eps:
        return "dinov3_convnext"
    found = "convnextv2" if cfg.grn else "convnext"
    if cfg.norm_eps != _EPS:
        raise UserError(f"transformers' {found} has model.norm_eps={_EPS}, not {cfg.norm_eps}")
    return found


def standard(cfg: ConvNeXtConfig) -> ConvNeXtConfig:
    """Return the config that `hf_config.model` reads of what is written of this one."""
    if kind(cfg) == "dinov3_convnext":  # has LayerScale always
        return dataclasses.replace(cfg, layer_scale=cfg.layer_scale or 1.0)
    return cfg


def sizes(cfg: ConvNeXtConfig) -> dict[str, Any]:
    """Return what config.json says of the network beside its type and classes."""
    found, theirs = kind(cfg), standard(cfg)
    tree: dict[str, Any] = {
        "hidden_sizes": list(cfg.widths),
        "depths": list(cfg.depths),
        "hidden_act": _ACTS[cfg.gelu],
        "layer_norm_eps": cfg.head_norm_eps,
        "image_size": models.pair(cfg.image_size, "image_size")[0],
        "num_channels": cfg.channels,
    }
    if found != "dinov3_convnext":
        tree |= {"num_stages": len(cfg.depths), "patch_size": 4}
    if found != "convnextv2":
        tree["layer_scale_init_value"] = theirs.layer_scale
    return tree
