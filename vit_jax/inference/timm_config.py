# SPDX-License-Identifier: Apache-2.0
"""What timm needs to build one of our models: config.json of its form on the Hugging Face Hub.

A timm model is an architecture, a function of timm's, and arguments that change its sizes. What an
architecture fixes is refused by name where a model has it otherwise.
"""

from collections.abc import Callable
from typing import Any

from vit_jax.data import Crop, Resize
from vit_jax.errors import UserError
from vit_jax.inference.trained import Trained
from vit_jax.models import (
    BiTConfig,
    CaiTConfig,
    ConViTConfig,
    HybridConfig,
    MixerConfig,
    ModelConfig,
    RegNetConfig,
    ResNetConfig,
    SwinConfig,
    ViTConfig,
    pair,
)
from vit_jax.models.hybrid import Standardise
from vit_jax.models.layers.conv import Padding
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.layers.resnet import Norm
from vit_jax.weights import timm as timm_names

Args = dict[str, Any]
_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_tanh", Gelu.QUICK: "quick_gelu"}
_CUTTING = (Crop.CENTER, Crop.SQUASH_CENTER)
_POOLS = {Pool.CLS: "token", Pool.GAP: "avg", Pool.MAP: "map"}


def hub_config(trained: Trained) -> dict[str, Any]:
    """Return config.json, from which `timm.create_model("local-dir:FOLDER")` builds the model.

    Raises:
        UserError: timm has no architecture for it; the field is named.
    """
    cfg = trained.model
    architecture, args = _ARCHITECTURES[type(cfg)](cfg)
    height, width = trained.image_size
    channels, transform = trained.channels, trained.transform
    first = "patch_embed" if hasattr(cfg, "patch") else "stem/conv"
    if isinstance(cfg, HybridConfig):
        first = "backbone/stem/conv"
    heads = ["head", "head_dist"] if getattr(cfg, "distilled", False) else ["head"]
    classifier = [_layer(name, cfg) for name in heads]
    return {
        "architecture": architecture,
        "num_classes": cfg.num_classes,
        "model_args": args,
        "label_names": list(trained.class_names),
        "pretrained_cfg": {
            "input_size": [channels, height, width],
            "fixed_input_size": "img_size" in args,
            "interpolation": _interpolation(transform.resize),
            "crop_pct": transform.crop_ratio if transform.crop in _CUTTING else 1.0,
            "crop_mode": "center" if transform.crop is Crop.CENTER else "squash",
            "mean": _per_channel(trained.mean, channels),
            "std": _per_channel(trained.std, channels),
            "first_conv": _layer(first, cfg),
            "classifier": classifier if len(classifier) > 1 else classifier[0],
        },
    }


def _layer(name: str, cfg: ModelConfig) -> str:
    return timm_names.key(f"{name}/kernel", cfg).removesuffix(".weight")


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) * (channels if len(values) == 1 else 1)


def _interpolation(resize: Resize) -> str:
    return "bicubic" if resize in (Resize.BICUBIC, Resize.BICUBIC_NO_ANTIALIAS) else "bilinear"


def _must(cfg: ModelConfig, architecture: str, **fields: Any) -> None:
    """Refuse fields that are not what timm's architecture has."""
    for name, value in fields.items():
        found = getattr(cfg, name)
        if found != value:
            shown = f"{value:g}" if isinstance(value, float) else value
            raise UserError(
                f"timm's {architecture} has model.{name}={shown}, not {found}; where the weights "
                f"bear it, change it by --model.{name}={shown}"
            )


def _ratio(hidden: int, dim: int) -> float:
    """Return the ratio of which timm's int(dim * ratio) is `hidden`."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim


def _patches(cfg: Any) -> Args:
    return {
        "img_size": list(pair(cfg.image_size, "image_size")),
        "patch_size": list(pair(cfg.patch, "patch")),
    }


def _transformer(cfg: Any) -> Args:
    return {
        "embed_dim": cfg.dim,
        "depth": cfg.depth,
        "num_heads": cfg.num_heads,
        "mlp_ratio": _ratio(cfg.mlp_dim, cfg.dim),
        "qkv_bias": cfg.qkv_bias,
    }


def _vit(cfg: ViTConfig) -> tuple[str, Args]:
    args = {**_patches(cfg), **_transformer(cfg), "act_layer": _ACTS[cfg.gelu]}
    if cfg.layer_scale:
        args["init_values"] = cfg.layer_scale
    name = "vit_base_patch16_clip_224" if cfg.norm_eps == 1e-5 else "vit_base_patch16_224"
    if cfg.distilled:
        name = "deit_base_distilled_patch16_224"
        _must(cfg, name, norm_eps=1e-6, qk_norm=False, pre_norm=False, token_merging=0)
        if cfg.dynamic_image_size:
            args["dynamic_img_size"] = True
        return name, args
    _must(cfg, name, norm_eps=1e-5 if cfg.norm_eps == 1e-5 else 1e-6, token_merging=0)
    # A table for the patches alone, ours where positions are fixed; none is timm's "none".
    covers_prefix = cfg.pos_embed is PosEmbed.LEARNED and cfg.pos_embed_prefix
    args |= {
        "class_token": cfg.class_token,
        "global_pool": _POOLS[cfg.pool],
        "fc_norm": cfg.fc_norm,
        "pool_include_prefix": cfg.pool_prefix,
        "reg_tokens": cfg.num_registers,
        "no_embed_class": not covers_prefix,
        "pre_norm": cfg.pre_norm,
        "qk_norm": cfg.qk_norm,
    }
    if cfg.pos_embed is PosEmbed.NONE:
        args["pos_embed"] = "none"
    if cfg.dynamic_image_size:
        args["dynamic_img_size"] = True
    return name, args


# Of timm's hybrids: the depths of the backbone, which nothing changes.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _hybrid(cfg: HybridConfig) -> tuple[str, Args]:
    name = _HYBRIDS.get(cfg.backbone_depths)
    if name is None:
        raise UserError(
            f"timm has no hybrid with model.backbone_depths={cfg.backbone_depths}; it has "
            + ", ".join(map(str, _HYBRIDS))
        )
    widths = (256, 512, 1024, 2048)[: len(cfg.backbone_depths)]
    fixed = {"backbone_widths": widths, "stem_width": 64, "num_groups": 32}
    fixed |= {"group_norm_eps": 1e-5, "weight_std": Standardise.TIMM, "padding": Padding.SAME}
    _must(cfg, name, **fixed)
    _, args = _vit(cfg)
    _must(cfg, name, norm_eps=1e-6, distilled=False)
    return name, args


def _cait(cfg: CaiTConfig) -> tuple[str, Args]:
    _must(cfg, "cait_xxs24_224", gelu=Gelu.ERF, norm_eps=1e-6)
    return "cait_xxs24_224", {
        **_patches(cfg),
        **_transformer(cfg),
        "init_values": cfg.layer_scale,
        "depth_token_only": cfg.token_depth,
        "mlp_ratio_token_only": _ratio(cfg.token_mlp_dim, cfg.dim),
    }


def _convit(cfg: ConViTConfig) -> tuple[str, Args]:
    _must(cfg, "convit_tiny", gelu=Gelu.ERF, norm_eps=1e-6)
    return "convit_tiny", {
        **_patches(cfg),
        **_transformer(cfg),
        "embed_dim": cfg.head_dim,  # of one head: timm multiplies
        "local_up_to_layer": cfg.local_up_to_layer,
        "locality_strength": cfg.locality_strength,
    }


def _swin(cfg: SwinConfig) -> tuple[str, Args]:
    _must(cfg, "swin_tiny_patch4_window7_224", gelu=Gelu.ERF, norm_eps=1e-5)
    window = cfg.window if len(cfg.window) > 2 else pair(cfg.window, "window")
    return "swin_tiny_patch4_window7_224", {
        **_patches(cfg),
        "embed_dim": cfg.dim,
        "depths": list(cfg.depths),
        "num_heads": list(cfg.num_heads),
        "window_size": list(window),
        "mlp_ratio": cfg.mlp_ratio,
        "qkv_bias": cfg.qkv_bias,
    }


# Of timm's Mixers: (side of a patch, depth, width), which nothing changes.
_MIXERS = {
    (patch, depth, dim): f"mixer_{size}{patch}_224"
    for size, depth, dim in (("s", 8, 512), ("b", 12, 768), ("l", 24, 1024))
    for patch in (16, 32)
}


def _mixer(cfg: MixerConfig) -> tuple[str, Args]:
    rows, columns = pair(cfg.patch, "patch")
    name = _MIXERS.get((rows, cfg.depth, cfg.dim)) if rows == columns else None
    if name is None:
        raise UserError(
            f"timm has no Mixer with model.patch={cfg.patch}, depth={cfg.depth} and dim={cfg.dim}; "
            f"it has {', '.join(_MIXERS.values())}"
        )
    _must(cfg, name, gelu=Gelu.ERF, norm_eps=1e-6)
    return name, {
        "img_size": list(pair(cfg.image_size, "image_size")),
        "mlp_ratio": [_ratio(w, cfg.dim) for w in (cfg.token_mlp_dim, cfg.channel_mlp_dim)],
    }


# Of timm's BiTs: (depths, factor of the width), which nothing changes.
_BITS: dict[tuple[tuple[int, ...], int], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


def _bit(cfg: BiTConfig) -> tuple[str, Args]:
    args: Args = {"channels": list(cfg.widths), "stem_chs": cfg.stem_width}
    if cfg.norm is Norm.BATCH:
        _must(cfg, "resnetv2_50", norm_eps=1e-5, padding=Padding.SYMMETRIC)
        return "resnetv2_50", {**args, "layers": list(cfg.depths), "width_factor": cfg.width_factor}
    name = _BITS.get((cfg.depths, cfg.width_factor))
    if name is None:
        raise UserError(
            f"timm has no BiT with model.depths={cfg.depths} and width_factor={cfg.width_factor}; "
            f"it has {', '.join(_BITS.values())}"
        )
    _must(cfg, name, norm_eps=1e-5, conv_eps=1e-8, num_groups=32, padding=Padding.FIXED)
    return name, args


def _regnet(cfg: RegNetConfig) -> tuple[str, Args]:
    _must(cfg, "regnety_160", norm_eps=1e-5)
    names = {"group_width": "group_size"}
    fields = ("depth", "w0", "wa", "wm", "group_width", "group_min_ratio", "stem_width", "se_ratio")
    return "regnety_160", {names.get(field, field): getattr(cfg, field) for field in fields}


def _resnet(cfg: ResNetConfig) -> tuple[str, Args]:
    _must(cfg, "resnet50", norm_eps=1e-5)
    channels = [width // 4 for width in cfg.widths]
    return "resnet50", {"layers": list(cfg.depths), "channels": channels}


_ARCHITECTURES: dict[type, Callable[[Any], tuple[str, Args]]] = {
    ViTConfig: _vit,
    HybridConfig: _hybrid,
    CaiTConfig: _cait,
    ConViTConfig: _convit,
    SwinConfig: _swin,
    MixerConfig: _mixer,
    BiTConfig: _bit,
    RegNetConfig: _regnet,
    ResNetConfig: _resnet,
}
