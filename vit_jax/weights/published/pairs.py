# SPDX-License-Identifier: Apache-2.0
"""Which pair of towers a repository holds, by its config.json or open_clip_config.json."""

from collections.abc import Mapping
from typing import Any

from vit_jax import models
from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError, shown, unknown
from vit_jax.models import ModelConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.text import TextConfig, TextInit, TextPool, TowerHead
from vit_jax.models.two_towers import TwoTowers
from vit_jax.weights.layout import Shape
from vit_jax.weights.names import hf_config
from vit_jax.weights.published import timm_config
from vit_jax.weights.published.table import Preprocessing

OPEN_CLIP = "open_clip_config.json"
# Two towers' model types of transformers, with the defaults of their text configs in 5.23.
_CLIP_TEXT = {
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "max_position_embeddings": 77,
    "vocab_size": 49_408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49_407,
}
_SIGLIP_TEXT = {
    **_CLIP_TEXT,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 64,
    "vocab_size": 32_000,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_TEXTS = {"clip": _CLIP_TEXT, "siglip": _SIGLIP_TEXT, "siglip2": _SIGLIP_TEXT}
_MOST = {"vocab_size": 2**21, "max_position_embeddings": 2**12, "num_hidden_layers": 2**10}
# What every published config of OpenAI's says: the end token is the largest id.
_LARGEST = 2


def is_pair(tree: Mapping[str, Any]) -> bool:
    """Return whether a config.json of transformers' is of two towers."""
    return tree.get("model_type") in _TEXTS and isinstance(tree.get("text_config"), dict)


def transformers(
    tree: Mapping[str, Any], image: ModelConfig, shapes: Mapping[str, Shape], source: str
) -> TwoTowers:
    """Return the pair of transformers' config.json.

    Args:
        tree: of the file.
        image: its image tower.
        shapes: of its weights, by key.
        source: the file's name in messages.

    Raises UserError: a value that no tower here has.
    """
    kind = str(tree["model_type"])
    found = _Section({**_TEXTS[kind], **tree["text_config"]}, f"{source}: text_config")
    is_clip = kind == "clip"
    end = found.integer("eos_token_id", least=0) if is_clip else 0
    head = "text_projection.weight" if is_clip else "text_model.head.weight"
    shape = shapes.get(head, ())
    text = TextConfig(
        vocab_size=found.integer("vocab_size"),
        context=found.integer("max_position_embeddings"),
        dim=found.integer("hidden_size"),
        depth=found.integer("num_hidden_layers"),
        num_heads=found.integer("num_attention_heads"),
        mlp_dim=found.integer("intermediate_size"),
        norm_eps=found.number("layer_norm_eps"),
        gelu=found.act(),
        causal=is_clip,
        pool=TextPool.END if is_clip else TextPool.LAST,
        end_id=0 if end == _LARGEST else end,
        projection=TowerHead.LINEAR if is_clip else TowerHead.AFFINE,
        init=TextInit.CLIP if is_clip else TextInit.SIGLIP,
    )
    if not shape and not is_clip:
        text.projection = TowerHead.NONE
    return TwoTowers(
        image=models.with_fields(image, {"num_classes": 0}),
        text=text,
        dim=shape[0] if shape else text.dim,
        image_projection=TowerHead.LINEAR if is_clip else TowerHead.NONE,
        has_bias=not is_clip,
    )


def open_clip(tree: Mapping[str, Any], source: str) -> TwoTowers:
    """Return the pair of open_clip's config: its `model_cfg`, or a file of model_configs/.

    Raises UserError: a tower that is not here: a language model, a ResNet of CLIP's, CoCa.
    """
    cfg = tree.get("model_cfg", tree)
    found = _Section(cfg, source)
    vision, texts = (_Section(found.group(f"{x}_cfg"), source) for x in ("vision", "text"))
    for key, what in (("hf_model_name", "a language model"), ("embed_cls", "CoCa's text tower")):
        if texts.tree.get(key):
            raise texts.wrong(f"text_cfg.{key}", f"is {what}, which is not here")
    quick = found.flag("quick_gelu", default=False)
    gelu = Gelu.QUICK if quick else Gelu.ERF
    dim, timm = found.integer("embed_dim"), vision.tree.get("timm_model_name")
    image = _trunk(str(timm), vision, source) if timm else _native(vision, gelu)
    return TwoTowers(
        image=image,
        text=_open_clip_text(texts, gelu),
        dim=dim,
        image_projection=_image_projection(vision) if timm else TowerHead.LINEAR,
        has_bias=found.tree.get("init_logit_bias") is not None,
    )


def _open_clip_text(found: "_Section", gelu: Gelu) -> TextConfig:
    norm = found.tree.get("norm_kwargs") or {}
    act = found.tree.get("act_kwargs") or {}
    width = found.integer("width", 512)
    pools = {"argmax": TextPool.END, "eos": TextPool.END, "last": TextPool.LAST}
    pools["first"] = TextPool.FIRST
    pool = str(found.tree.get("pool_type") or "argmax")
    if pool not in pools:
        raise unknown(f"text_cfg.pool_type in {found.source}:", shown(pool[:80]), pools)
    proj = found.tree.get("proj_type", "linear")
    has_bias = found.flag("proj_bias", default=False)
    return TextConfig(
        vocab_size=found.integer("vocab_size", 49_408),
        context=found.integer("context_length", 77),
        dim=width,
        depth=found.integer("layers", 12),
        num_heads=found.integer("heads", 8),
        mlp_dim=int(width * found.number("mlp_ratio", 4.0)),
        causal=not found.flag("no_causal_mask", default=False),
        pool=pools[pool],
        end_id=found.integer("eos_id", 0, least=0) if pool == "eos" else 0,
        projection=TowerHead.NONE
        if proj == "none" or not proj
        else TowerHead.AFFINE
        if has_bias
        else TowerHead.LINEAR,
        gelu=Gelu.TANH if act.get("approximate") == "tanh" else gelu,
        norm_eps=float(norm.get("eps", 1e-5)),
        layer_scale=found.number("ls_init_value", 0.0),
        init=TextInit.SIGLIP if pool == "last" and has_bias else TextInit.CLIP,
    )


def _native(found: "_Section", gelu: Gelu) -> ModelConfig:
    """Return open_clip's own ViT."""
    layers = found.tree.get("layers", 12)
    if isinstance(layers, list):
        raise found.wrong("vision_cfg.layers", "is a ResNet of CLIP's, which is not here")
    if found.tree.get("attentional_pool"):
        raise found.wrong("vision_cfg.attentional_pool", "is CoCa's, which is not here")
    width = found.integer("width", 768)
    pool = str(found.tree.get("pool_type") or "tok")
    if pool not in ("tok", "avg"):
        raise found.wrong("vision_cfg.pool_type", "must be tok or avg")
    after = found.flag("final_ln_after_pool", default=False)
    return models.variant(
        "vit_b16_clip",
        num_classes=0,
        image_size=found.pair("image_size", 224),
        patch=found.pair("patch_size", 16),
        dim=width,
        depth=found.integer("layers", 12),
        num_heads=width // found.integer("head_width", 64),
        mlp_dim=int(width * found.number("mlp_ratio", 4.0)),
        layer_scale=found.number("ls_init_value", 0.0),
        pre_norm=not found.flag("no_ln_pre", default=False),
        gelu=gelu,
        pool=Pool.GAP if pool == "avg" else Pool.CLS,
        fc_norm=pool == "avg" and after,
    )


def _trunk(name: str, found: "_Section", source: str) -> ModelConfig:
    """Return the network of timm's."""
    size = list(found.pair("image_size", 224))
    tree = {"architecture": name, "num_classes": 0, "pretrained_cfg": {"input_size": [3, *size]}}
    cfg = timm_config.model(tree, source)
    pools = {"": None, "avg": Pool.GAP, "token": Pool.CLS, "map": Pool.MAP}
    pool = str(found.tree.get("timm_pool", "avg"))
    if pool not in pools:
        raise found.wrong("vision_cfg.timm_pool", f"must be one of {', '.join(pools)[2:]}")
    fields: dict[str, Any] = {"num_classes": 0, "image_size": tuple(size)}
    if pools[pool] and getattr(cfg, "pool", pools[pool]) != pools[pool]:
        fields |= {"pool": pools[pool], "fc_norm": pools[pool] is Pool.GAP}  # as timm's ViT
    return models.with_fields(cfg, fields)


def _image_projection(found: "_Section") -> TowerHead:
    """Return the layer after timm's network; where none is named, that is the network's head."""
    kind = found.tree.get("timm_proj", "linear")
    if kind not in ("linear", "none", "", None):
        raise found.wrong("vision_cfg.timm_proj", "must be linear or none")
    if kind == "none":
        return TowerHead.NONE
    has_bias = kind == "linear" and found.flag("timm_proj_bias", default=False)
    return TowerHead.AFFINE if has_bias else TowerHead.LINEAR


def open_clip_images(tree: Mapping[str, Any], cfg: ModelConfig, source: str) -> Preprocessing:
    """Return the preprocessing of open_clip's config.

    Raises UserError: a value that cannot be.
    """
    found = _Section(tree.get("preprocess_cfg") or {}, source)
    resizes = {
        "bicubic": Resize.BICUBIC,
        "bilinear": Resize.BILINEAR_ANTIALIAS,
        "random": Resize.BICUBIC,
    }
    name = str(found.tree.get("interpolation", "bicubic"))
    if name not in resizes:
        raise unknown(f"interpolation in {source}:", shown(name[:80]), resizes)
    crops = {"shortest": Crop.CENTER, "squash": Crop.RESIZE}
    mode = str(found.tree.get("resize_mode", "shortest"))
    if mode not in crops:
        raise unknown(f"resize_mode in {source}:", shown(mode[:80]), crops)
    clip = models.family(models.variant("vit_b16_clip")).images(models.variant("vit_b16_clip"))
    mean, std = (
        found.numbers(key, usual) for key, usual in zip(("mean", "std"), clip[0], strict=True)
    )
    transform = TransformConfig(
        crop=crops[mode], crop_rule=CropRule.TORCH, resize=resizes[name], crop_ratio=1.0
    )
    return Preprocessing(mean, std, transform, models.input_shape(cfg)[:2], source)


class _Section:
    """Values of a stranger's file, each checked as it is asked for."""

    def __init__(self, tree: Any, source: str) -> None:
        if not isinstance(tree, Mapping):
            raise UserError(f"{source} must hold an object of JSON")
        self.tree, self.source = tree, source

    def wrong(self, key: str, must: str) -> UserError:
        value = self.tree.get(key.rpartition(".")[2])
        return UserError(f"{self.source}: {key}={shown(repr(value)[:80])} {must}")

    def group(self, key: str) -> Mapping[str, Any]:
        value = self.tree.get(key)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must be an object of JSON")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value, most = self.tree.get(key, default), _MOST.get(key, 2**21)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value: Any = self.tree.get(key)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 <= value <= 1e6:
            raise self.wrong(key, "must be a number from 0 to 1e6")
        return float(value)

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self.tree.get(key, list(default))
        if not isinstance(value, list) or not all(type(x) in (int, float) for x in value):
            raise self.wrong(key, "must be numbers, one a channel")
        return tuple(map(float, value))

    def pair(self, key: str, default: int) -> tuple[int, int]:
        value = self.tree.get(key, default)
        sides = value if isinstance(value, list) else [value, value]
        if len(sides) != 2 or not all(type(n) is int and 1 <= n <= 2**14 for n in sides):
            raise self.wrong(key, "must be one or two whole numbers")
        return sides[0], sides[1]

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.tree.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def act(self) -> Gelu:
        value = self.tree.get("hidden_act")
        if value not in hf_config.ACTS:
            raise unknown(f"hidden_act in {self.source}:", shown(str(value)[:80]), hf_config.ACTS)
        return hf_config.ACTS[value]
