# SPDX-License-Identifier: Apache-2.0
"""transformers' names: our parameters under them, in both directions.

A layout is the names that a group of its models share (models/names.tsv), with PyTorch's shapes;
prefixes such as "vit." are optional, as files have them or not.

What transformers holds in another shape is seen as ours, and joined again: queries, keys and values
of a pool lie in one tensor, as do gate and value of DINOv2's SwiGLU; CLIP has tokens and positions
without the batch's axis; a head may see more than ours, and a table cover more.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError, setting
from vit_jax.models import ModelConfig, ViTConfig, facts
from vit_jax.models.facts import Rename
from vit_jax.models.layers.mlp import MlpKind
from vit_jax.models.layers.pool import Pool
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import (
    Entry,
    FileTensor,
    Layout,
    Shape,
    flat_patch,
    fused,
    renamed,
    torch_layout,
)


class SavedNames(NamedTuple):
    """The names that some of transformers' models share."""

    code: str  # of models/names.tsv
    qkv: tuple[str, ...]  # its names of queries, keys and values, if any
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
_VIT = SavedNames(
    "hf_vit",
    _ATTENTION,
    _PATCHES,
    ("", "vit.", "deit.", "ijepa.", "dpt."),
    "classifier",
    r"^pooler\.|^decoder\.",
    (
        (r"^((?:vit|deit|ijepa)\.)?layers\.", r"\1encoder.layer."),
        *_MODULES,
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    ),
)
_TOWERS = ("", "vision_model.")
_TEXT = r"^text_model\.|^text_projection\.|^logit_(scale|bias)$|\.position_ids$"
# EoMT's queries and heads, which `eomt.beside` finds, and its buffers.
_EOMT = r"^(query|upscale_block|mask_head|class_predictor|criterion)\.|^attn_mask_probs$"
_TABLES = tuple(f"embeddings.position_embedding{plural}.weight" for plural in ("", "s"))
LAYOUTS = {
    "vit": _VIT,
    "dinov2": SavedNames(
        "hf_dinov2",
        _ATTENTION,
        _PATCHES,
        ("", "dinov2.", "dinov2_with_registers.", "backbone."),
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
    "dinov3": SavedNames(
        "hf_dinov3",
        _PROJ,
        "embeddings.patch_embeddings.weight",
        ("",),
        "classifier",
        r"(^|\.)mask_token$",
        ((r"^model\.(layer\.|norm\.|embeddings\.)", r"\1"),),
    ),
    "siglip": SavedNames(
        "hf_clip", _PROJ, "embeddings.patch_embedding.weight", _TOWERS, "classifier", _TEXT
    ),
    "clip": SavedNames(
        "hf_clip", _PROJ, "embeddings.patch_embedding.weight", _TOWERS, "visual_projection", _TEXT
    ),
    "convnext": SavedNames(
        "hf_convnext",
        (),
        "embeddings.patch_embeddings.weight",
        ("", "convnext.", "convnextv2."),
        "classifier",
        r"(?!)",
    ),
    "dinov3_convnext": SavedNames(
        "hf_dinov3",
        (),
        "stages.0.downsample_layers.0.weight",
        ("",),
        "classifier",
        r"(?!)",
        ((r"^model\.stages\.", "stages."),),
    ),
    "eomt": SavedNames(
        "hf_eomt",
        _PROJ,
        _PATCHES,
        ("",),
        "classifier",
        _EOMT,
        ((r"\.mlp\.weights_out\.", ".mlp.down_proj."),),  # of files before transformers 5
        (
            (r"/mlp/fc1_g/", "/mlp/gate_proj/"),
            (r"/mlp/fc1_x/", "/mlp/up_proj/"),
            (r"/mlp/fc2/", "/mlp/down_proj/"),
        ),
    ),
    "eomt_dinov3": SavedNames(
        "hf_eomt_dinov3",
        _PROJ,
        "embeddings.patch_embeddings.weight",
        ("",),
        "classifier",
        _EOMT,
    ),
    "aimv2": SavedNames(
        "hf_aimv2",
        _PROJ,
        "embeddings.patch_embed.weight",
        _TOWERS,
        "classifier",
        rf"{_TEXT}|^visual_projection\.",
    ),
}
# Layers that make several vectors, of which a layout has a layer each: `qkv`, AIMv2's `kv`.
_APART = ("qkv", "query_pool/kv")


def prefix(layout: SavedNames, keys: Collection[str]) -> str:
    """Return what the keys of a file begin with; "" where its stem is under none of the known."""
    return next((p for p in layout.prefixes if p + layout.stem in keys), "")


def entries(cfg: ModelConfig, layout: SavedNames, before: str) -> list[Entry]:
    """List every parameter of a model with its place in a file of a layout.

    Raises UserError: another family, of which the layout has no names.
    """
    renames, heads = rules(cfg, layout), _heads(cfg, layout)
    if not renames:
        name = models.family(cfg).name
        raise UserError(f"no names of transformers' are known for {name} in this layout")
    num_heads = getattr(cfg, "num_heads", 1)

    def place(name: str, shape: Shape, _: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        there, qkv = torch_layout(name, shape, num_heads), layout.qkv
        if name.endswith("/qkv/bias") and not getattr(cfg, "key_bias", True):
            there, qkv = fused(shape, 2, num_heads), layout.qkv[::2]
        if "/grn/" in name:  # as it multiplies maps
            there = Layout(
                (1, 1, 1, *shape), lambda x: x.reshape(shape), lambda x: x[None, None, None]
            )
        module, kind = name.rpartition("/")[::2]
        key = f"{heads[module]}/{kind}" if module in heads else before + renamed(name, renames)
        key = re.sub(r"/(kernel|scale)$", "/weight", key).replace("/", ".")
        if not module.endswith(_APART):
            parts = (FileTensor(key, there.shape),)
            return parts, lambda parts: there.decode(parts[0]), lambda x: [there.encode(x)]
        if module.endswith("/kv"):
            qkv = layout.qkv[1:]
        each = (there.shape[0] // len(qkv), *there.shape[1:])
        keys = (re.sub(r"\.q?kv\.", f".{part}.", key) for part in qkv)
        return (
            tuple(FileTensor(key, each) for key in keys),
            lambda parts: there.decode(np.concatenate(parts)),
            lambda x: np.split(there.encode(x), len(qkv)),
        )

    return layout_lib.entries(models.abstract(cfg), place)


def rules(cfg: ModelConfig, layout: SavedNames) -> tuple[Rename, ...]:
    """Return the renames of a model's parameters, '/'-joined, to a layout's names; () for none."""
    if not isinstance(cfg, ViTConfig):
        return facts.names(models.family(cfg).name, layout.code)
    gated = layout.gated if cfg.mlp is MlpKind.SWIGLU else ()
    return (*gated, *facts.names("ViT", layout.code))


def _heads(cfg: ModelConfig, layout: SavedNames) -> dict[str, str]:
    if getattr(cfg, "distilled", False):
        return {"head": "cls_classifier", "head_dist": "distillation_classifier"}
    return {"head": layout.head}


def is_ignored(key: str, cfg: Any, layout: SavedNames, before: str) -> bool:
    """Return whether the model has no use for a key of the file.

    A model without classes does not use CLIP's projection or DINOv2's head over two vectors; one
    that averages SigLIP's or AIMv2's tokens does not use their pooling by attention.
    """
    inside = key.removeprefix(before)
    if not cfg.num_classes and (layout is LAYOUTS["clip"] or layout is LAYOUTS["dinov2"]):
        return key.startswith(f"{layout.head}.") or bool(re.search(layout.ignored, inside))
    for name, pool in (("siglip", Pool.MAP), ("aimv2", Pool.QUERY)):
        if layout is LAYOUTS[name] and cfg.pool is not pool and inside.startswith("head."):
            return True
    return bool(re.search(layout.ignored, inside))


_IN_PROJ = re.compile(r"(.*\.)in_proj_(weight|bias)$")
_GATED = re.compile(r"(.*\.weights_in)\.(weight|bias)$")  # SwiGLU's gate and value

View = tuple[Shape, Callable[[], np.ndarray]]


def seen(source: WeightsFile, cfg: Any, layout: SavedNames, before: str) -> WeightsFile:
    """Return a file with its tensors in the shapes that `entries` looks for."""
    source = _as_saved(source, layout)
    changed = dict(_views(source, cfg, layout, before))
    whole = (_IN_PROJ, _GATED)
    kept = {k: s for k, s in source.shapes.items() if not any(p.match(k) for p in whole)}
    shapes = kept | {key: shape for key, (shape, _) in changed.items()}

    def read(key: str) -> np.ndarray:
        return changed[key][1]() if key in changed else source.read(key)

    return WeightsFile(source.name, shapes, read)


def _as_saved(source: WeightsFile, layout: SavedNames) -> WeightsFile:
    """Name modules' tensors, which somebody wrote without transformers, as transformers does."""
    keys = {renamed(key, layout.modules): key for key in source.shapes}
    if len(keys) < len(source.shapes) or not layout.modules:
        return source
    shapes = {new: source.shapes[old] for new, old in keys.items()}
    return WeightsFile(source.name, shapes, lambda new: source.read(keys[new]))


def _views(
    source: WeightsFile, cfg: Any, layout: SavedNames, before: str
) -> Iterator[tuple[str, View]]:
    shapes, read = source.shapes, source.read

    def reshaped(key: str, shape: Shape) -> tuple[str, View]:
        return key, (shape, lambda: read(key).reshape(shape))

    for key, shape in shapes.items():
        inside = key.removeprefix(before)
        packed, gated = _IN_PROJ.match(key), _GATED.match(key)
        if gated:
            half, kind = shape[0] // 2, gated[2]
            part, own = (half, *shape[1:]), (f"{gated[1]}_g", f"{gated[1]}_x")
            if layout is LAYOUTS["eomt"]:
                own = [gated[1].replace("weights_in", f"{name}_proj") for name in ("gate", "up")]
            yield f"{own[0]}.{kind}", (part, lambda k=key, n=half: read(k)[:n])
            yield f"{own[1]}.{kind}", (part, lambda k=key, n=half: read(k)[n:])
        elif packed:  # of attention pooling
            width, kind = shape[0] // 3, packed[2]
            q, kv = ((size, *shape[1:]) for size in (width, 2 * width))
            yield f"{packed[1]}q.{kind}", (q, lambda k=key, n=width: read(k)[:n])
            yield f"{packed[1]}kv.{kind}", (kv, lambda k=key, n=width: read(k)[n:])
        elif inside == "embeddings.class_embedding" and len(shape) == 1:
            yield reshaped(key, (1, 1, *shape))
        elif inside in _TABLES and len(shape) == 2:
            yield reshaped(key, (1, *shape))
        elif inside == "embeddings.patch_embedding.weight" and len(shape) == 2:
            yield from _as_convolution(source, key, cfg)
        elif key == "classifier.weight" and layout is LAYOUTS["dinov2"]:
            yield from _of_class_token(source, key, cfg)
        elif key == "visual_projection.weight" and cfg.num_classes:  # it has no bias
            count = shape[:1]
            yield "visual_projection.bias", (count, lambda n=count: np.zeros(n, np.float32))
    if isinstance(cfg, ViTConfig):
        yield from _folded(source, cfg, layout, before)


def _as_convolution(source: WeightsFile, key: str, cfg: ViTConfig) -> Iterator[tuple[str, View]]:
    """See a projection of flattened patches (rows, columns, channels) as a convolution's kernel."""
    dim, size = source.shapes[key]
    if found := flat_patch(size, cfg.channels, models.pair(cfg.patch, "patch")):
        channels, rows, columns = found
        there = (dim, rows, columns, channels)
        shape = (dim, *found)
        yield key, (shape, lambda: source.read(key).reshape(there).transpose(0, 3, 1, 2))


def _of_class_token(source: WeightsFile, key: str, cfg: ViTConfig) -> Iterator[tuple[str, View]]:
    """See DINOv2's head over class token and mean of patches as one over the class token.

    Ours is written so; the published ones see both.
    """
    count, size = source.shapes[key]

    def read() -> np.ndarray:
        value = source.read(key)
        if value[:, cfg.dim :].any():
            flag = setting("model.num_classes=0")
            raise UserError(
                f"{source.name}: {key} sees the class token and the mean of the patches, which no "
                f"head here does; {flag} leaves it out, for the features"
            )
        return value[:, : cfg.dim]

    if size == 2 * cfg.dim:
        yield key, ((count, cfg.dim), read)


def _folded(
    source: WeightsFile, cfg: ViTConfig, layout: SavedNames, before: str
) -> Iterator[tuple[str, View]]:
    """Give the class token its position where the model's table covers the patches alone."""
    renames = rules(cfg, layout)
    token, table = (
        before + re.sub(r"/kernel$", "/weight", renamed(name, renames)).replace("/", ".")
        for name in ("cls_token", "pos_embed")
    )
    shape = source.shapes.get(table)
    covered = not cfg.pos_embed_prefix and cfg.class_token and not cfg.distilled
    covered = covered and layout is not LAYOUTS["eomt"]  # whose table is of the patches, too
    if not covered or shape is None or token not in source.shapes or len(shape) < 2:
        return
    count, dim = shape[-2:]
    whole = (1, count, dim)
    yield table, ((1, count - 1, dim), lambda: source.read(table).reshape(whole)[:, 1:])

    def read() -> np.ndarray:
        first = source.read(table).reshape(whole)[:, :1]
        return source.read(token).reshape(1, 1, -1) + first

    yield token, ((1, 1, dim), read)


def state(
    variables: Mapping[str, Any], cfg: ModelConfig, layout: SavedNames, before: str
) -> dict[str, np.ndarray]:
    """Return a model's variables under a layout's names, in the shapes of transformers."""
    leaves, found = dict(trees.named_leaves(variables)), {}
    for entry in entries(cfg, layout, before):
        assert entry.encode is not None, "these layouts go both ways"
        value = np.asarray(leaves[entry.name])
        for parts, layer in zip(entry.layers, value if entry.stacked else [value], strict=True):
            for part, there in zip(parts, entry.encode(layer), strict=True):
                found[part.key] = np.ascontiguousarray(there)
    return dict(_joined(found, cfg, layout, before)) if isinstance(cfg, ViTConfig) else found


def _joined(
    found: Mapping[str, np.ndarray], cfg: ViTConfig, layout: SavedNames, before: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Undo what `_views` does."""
    folded = cfg.class_token and not cfg.pos_embed_prefix
    for key, value in found.items():
        inside = key.removeprefix(before)
        packed = re.match(r"(head\.attention\.)(q|kv)\.(weight|bias)$", inside)
        gated = re.match(r"(.*\.weights_in)_([gx])\.(weight|bias)$", key)
        if gated:
            if gated[2] == "g":
                both = value, found[f"{gated[1]}_x.{gated[3]}"]
                yield f"{gated[1]}.{gated[3]}", np.concatenate(both)
        elif packed:
            if packed[2] == "q":
                both = value, found[f"{before}{packed[1]}kv.{packed[3]}"]
                yield f"{before}{packed[1]}in_proj_{packed[3]}", np.concatenate(both)
        elif inside == "embeddings.position_embeddings" and folded:
            yield key, np.concatenate([np.zeros_like(value[:, :1]), value], axis=1)
        elif inside == "embeddings.class_embedding":
            yield key, value.reshape(-1)
        elif inside in _TABLES:
            yield key, value[0]
        elif key == "classifier.weight" and layout is LAYOUTS["dinov2"]:
            yield key, np.concatenate([value, np.zeros_like(value)], axis=1)
        elif key != "visual_projection.bias":
            yield key, value
