# SPDX-License-Identifier: Apache-2.0
"""transformers' names: our parameters under them, in both directions.

A layout is the names that a group of its models share (models/names.tsv), with PyTorch's shapes;
prefixes such as "vit." are optional, as files have them or not. weights/hf_views.py has what
transformers holds in another shape.
"""

import re
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, ViTConfig, facts
from vit_jax.models.facts import Rename
from vit_jax.models.layers.mlp import MlpKind
from vit_jax.models.layers.pool import Pool
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.layout import Entry, FileTensor, Shape, fused, renamed, torch_layout


class Layout(NamedTuple):
    """The names that some of transformers' models share."""

    code: str  # of models/names.tsv
    qkv: tuple[str, str, str]  # its names of queries, keys and values
    stem: str  # the key that shows a file's prefix
    prefixes: tuple[str, ...]  # possible ones
    head: str  # of logits; beside the prefix, as are `head_dist` and what is ignored
    ignored: str  # regex of keys that are nothing of an image's tower, without the prefix
    # From the names that the modules of transformers 5 have, which it does not save, to its own.
    modules: tuple[Rename, ...] = ()
    gated: tuple[Rename, ...] = ()  # of an MLP of SwiGLU, before those of models/names.tsv


_ATTENTION = ("query", "key", "value")
_PROJ = ("q_proj", "k_proj", "v_proj")
_PATCHES = "embeddings.patch_embeddings.projection.weight"
_MODULES: tuple[Rename, ...] = (
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)
_VIT = Layout(
    "hf_vit",
    _ATTENTION,
    _PATCHES,
    ("", "vit.", "deit."),
    "classifier",
    r"^pooler\.|^decoder\.",
    (
        (r"^((?:vit|deit)\.)?layers\.", r"\1encoder.layer."),
        *_MODULES,
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
)
_TOWERS = ("", "vision_model.")
_TEXT = r"^text_model\.|^text_projection\.|^logit_(scale|bias)$|\.position_ids$"
LAYOUTS = {
    "vit": _VIT,
    "dinov2": Layout(
        "hf_dinov2",
        _ATTENTION,
        _PATCHES,
        ("", "dinov2.", "dinov2_with_registers."),
        "classifier",
        r"(^|\.)mask_token$",
        (
            *_MODULES,
            (r"\.mlp\.gate_proj\.", ".mlp.weights_in_g."),
            (r"\.mlp\.up_proj\.", ".mlp.weights_in_x."),
            (r"\.mlp\.down_proj\.", ".mlp.weights_out."),
        ),
        ((r"/fc1_([gx])/", r"/weights_in_\1/"), (r"/mlp/fc2/", "/mlp/weights_out/")),
    ),
    "dinov3": Layout(
        "hf_dinov3",
        _PROJ,
        "embeddings.patch_embeddings.weight",
        ("",),
        "classifier",
        r"(^|\.)mask_token$",
        ((r"^model\.(layer\.|norm\.|embeddings\.)", r"\1"),),
    ),
    "siglip": Layout(
        "hf_clip", _PROJ, "embeddings.patch_embedding.weight", _TOWERS, "classifier", _TEXT
    ),
    "clip": Layout(
        "hf_clip", _PROJ, "embeddings.patch_embedding.weight", _TOWERS, "visual_projection", _TEXT
    ),
}


def prefix(layout: Layout, keys: Collection[str]) -> str:
    """Return what the keys of a file begin with; "" where its stem is under none of the known."""
    return next((p for p in layout.prefixes if p + layout.stem in keys), "")


def entries(cfg: ModelConfig, layout: Layout, before: str) -> list[Entry]:
    """List every parameter of a ViT with its place in a file of a layout.

    Raises UserError: another family, of which transformers' names are not known here.
    """
    if not isinstance(cfg, ViTConfig):
        name = models.family(cfg).name
        raise UserError(f"no names of transformers' are known for {name}; it is a ViT's layout")
    renames, heads = rules(cfg, layout), _heads(cfg, layout)

    def place(name: str, shape: Shape, _: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        there = torch_layout(name, shape, cfg.num_heads)
        qkv: tuple[str, ...] = layout.qkv
        if name.endswith("/qkv/bias") and not cfg.key_bias:
            there, qkv = fused(shape, 2, cfg.num_heads), layout.qkv[::2]
        module, kind = name.rpartition("/")[::2]
        key = f"{heads[module]}/{kind}" if module in heads else before + renamed(name, renames)
        key = re.sub(r"/(kernel|scale)$", "/weight", key).replace("/", ".")
        if module.rpartition("/")[2] != "qkv":
            parts = (FileTensor(key, there.shape),)
            return parts, lambda parts: there.decode(parts[0]), lambda x: [there.encode(x)]
        each = (there.shape[0] // len(qkv), *there.shape[1:])
        keys = (key.replace(".qkv.", f".{part}.") for part in qkv)
        return (
            tuple(FileTensor(key, each) for key in keys),
            lambda parts: there.decode(np.concatenate(parts)),
            lambda x: np.split(there.encode(x), len(qkv)),
        )

    return layout_lib.entries(models.abstract(cfg), place)


def rules(cfg: ViTConfig, layout: Layout) -> tuple[Rename, ...]:
    """Return the renames of a model's parameters, '/'-joined, to a layout's names."""
    gated = layout.gated if cfg.mlp is MlpKind.SWIGLU else ()
    return (*gated, *facts.names("ViT", layout.code))


def _heads(cfg: ViTConfig, layout: Layout) -> dict[str, str]:
    if cfg.distilled:
        return {"head": "cls_classifier", "head_dist": "distillation_classifier"}
    return {"head": layout.head}


def is_ignored(key: str, cfg: Any, layout: Layout, before: str) -> bool:
    """Return whether a key of a file is nothing of the model that is made of it.

    Of a model without classes, CLIP's projection and DINOv2's head over two vectors are nothing; of
    one that takes the mean of SigLIP's tokens, its pooling by attention is nothing.
    """
    inside = key.removeprefix(before)
    if not cfg.num_classes and (layout is LAYOUTS["clip"] or layout is LAYOUTS["dinov2"]):
        return key.startswith(f"{layout.head}.") or bool(re.search(layout.ignored, inside))
    if cfg.pool is not Pool.MAP and layout is LAYOUTS["siglip"] and inside.startswith("head."):
        return True
    return bool(re.search(layout.ignored, inside))
