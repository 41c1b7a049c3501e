# SPDX-License-Identifier: Apache-2.0
"""Pairs of towers in other codes' files: where each parameter lies, and the way there and back.

transformers has `vision_model.` and `text_model.`; open_clip `visual.`, its own ViT or below
`trunk.` timm's network, and the text tower at the root or below `text.`; big_vision `img/` and
`txt/`, all at the root or below `params/`.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ViTConfig, facts, two_towers
from vit_jax.models.text import TowerHead
from vit_jax.models.two_towers import BIAS, IMAGE_HEAD, SCALE, TEXT, TwoTowers
from vit_jax.weights import export
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import Entry, FileTensor, Shape, renamed, torch_layout
from vit_jax.weights.names import google, hf, timm

View = tuple[Shape, Callable[[], np.ndarray]]
_GOOGLE_PARTS = ("query", "key", "value")


class Codebase(enum.StrEnum):
    """Whose file it is."""

    TRANSFORMERS = "transformers"
    OPEN_CLIP = "open_clip"
    BIG_VISION = "big_vision"


class PairFile(NamedTuple):
    """A file of two towers, as a pair's entries look for it."""

    form: Codebase
    source: WeightsFile
    entries: list[Entry]
    is_ignored: Callable[[str], bool]


def form(shapes: Mapping[str, Shape]) -> Codebase | None:
    """Return whose file of two towers has these keys; None for one of another kind."""
    if any(key.startswith("text_model.") for key in shapes):
        return Codebase.TRANSFORMERS
    if any(key.removeprefix("text.") == "token_embedding.weight" for key in shapes):
        return Codebase.OPEN_CLIP
    if any(key.removeprefix("params/") == "txt/Embed_0/embedding" for key in shapes):
        return Codebase.BIG_VISION
    return None


def opened(source: WeightsFile, cfg: TwoTowers) -> PairFile:
    """See a file as a pair's: its tensors, where each parameter is, what is none.

    Raises UserError: a file of one tower, or of none that is known; an image encoder that its code
        has no names for.
    """
    found = form(source.shapes)
    if found is None:
        raise UserError(
            f"{source.name} holds no text tower under the names of transformers, open_clip or "
            "big_vision; an image tower alone is read by init.weights of a run, or vit_jax.load"
        )
    return {
        Codebase.TRANSFORMERS: _transformers,
        Codebase.OPEN_CLIP: _open_clip,
        Codebase.BIG_VISION: _big_vision,
    }[found](source, cfg)


def _scalar(name: str, key: str, shape: Shape) -> Entry:
    return Entry(
        f"params/{name}",
        (),
        False,
        ((FileTensor(key, shape),),),
        lambda parts: parts[0].reshape(()),
        lambda value: [np.asarray(value).reshape(shape)],
    )


def _matrix(name: str, key: str, shape: Shape, *, is_torch: bool) -> Entry:
    """Place a kernel [in, out], which PyTorch's Linear layers have as [out, in]."""
    there = shape[::-1] if is_torch else shape
    turn = np.transpose if is_torch else np.asarray
    return Entry(
        f"params/{name}",
        shape,
        False,
        ((FileTensor(key, there),),),
        lambda parts: turn(parts[0]),
        lambda value: [turn(value)],
    )


def _vector(name: str, key: str, shape: Shape) -> Entry:
    return Entry(
        f"params/{name}",
        shape,
        False,
        ((FileTensor(key, shape),),),
        lambda parts: parts[0],
        lambda value: [value],
    )


def _shapes(cfg: TwoTowers) -> dict[str, Shape]:
    """Return the shapes of what stands beside the image encoder, by our names."""
    beside = two_towers.abstract(cfg)["params"]
    leaves = trees.named_leaves(
        {name: beside[name] for name in two_towers.BESIDE if name in beside}
    )
    return {name: leaf.shape for name, leaf in leaves}


def _text(cfg: TwoTowers, place: Callable[..., Any]) -> list[Entry]:
    """List the text tower's parameters, without the layer to the shared space."""
    tower = dict(two_towers.abstract(cfg)["params"][TEXT])
    tower.pop("head", None)

    def own(name: str, shape: Shape, layer: int) -> Any:
        return place(name.removeprefix(f"{TEXT}/"), shape, layer)

    return layout_lib.entries({"params": {TEXT: tower}}, own)


# transformers


def _transformers(source: WeightsFile, cfg: TwoTowers) -> PairFile:
    image, before = _vit(cfg, "transformers"), "vision_model."
    layout = hf.LAYOUTS["clip" if image.pre_norm else "siglip"]
    seen = hf.seen(source, image, layout, before)
    entries = [*hf.entries(image, layout, before), *_transformers_beside(cfg, source.shapes)]
    return PairFile(
        Codebase.TRANSFORMERS, seen, entries, lambda key: bool(re.search(r"\.position_ids$", key))
    )


def _transformers_beside(cfg: TwoTowers, there: Mapping[str, Shape]) -> list[Entry]:
    rules, heads = facts.names("Text", "hf"), cfg.text.num_heads

    def place(name: str, shape: Shape, _: int) -> Any:
        layout = torch_layout(name, shape, heads)
        key = re.sub(r"/(kernel|scale)$", "/weight", f"text_model/{renamed(name, rules)}")
        key = key.replace("/", ".")
        if ".qkv." not in key:
            parts = (FileTensor(key, layout.shape),)
            return parts, lambda parts: layout.decode(parts[0]), lambda x: [layout.encode(x)]
        each = (layout.shape[0] // 3, *layout.shape[1:])
        keys = (key.replace(".qkv.", f".{part}_proj.") for part in "qkv")
        return (
            tuple(FileTensor(key, each) for key in keys),
            lambda parts: layout.decode(np.concatenate(parts)),
            lambda x: np.split(layout.encode(x), 3),
        )

    shapes, found = _shapes(cfg), _text(cfg, place)
    # CLIP's projection lies at the root, SigLIP's within the tower.
    head = "text_model.head" if cfg.has_bias else "text_projection"
    if f"{TEXT}/head/kernel" in shapes:
        name = f"{TEXT}/head/kernel"
        found.append(_matrix(name, f"{head}.weight", shapes[name], is_torch=True))
    if f"{TEXT}/head/bias" in shapes:
        found.append(_vector(f"{TEXT}/head/bias", f"{head}.bias", shapes[f"{TEXT}/head/bias"]))
    if (name := f"{IMAGE_HEAD}/kernel") in shapes:
        found.append(_matrix(name, "visual_projection.weight", shapes[name], is_torch=True))
    one = (1,) if cfg.has_bias else ()
    found.append(_scalar(SCALE, "logit_scale", there.get("logit_scale", one)))
    if cfg.has_bias:
        found.append(_scalar(BIAS, "logit_bias", there.get("logit_bias", one)))
    return found


# open_clip


def _open_clip(source: WeightsFile, cfg: TwoTowers) -> PairFile:
    """See the image's half in timm's form, its keys still below `visual.`."""
    known = timm.entries(cfg.image)
    image = timm.with_timm_names(_half(source, "visual."), cfg.image, known)
    beside = {k: s for k, s in source.shapes.items() if _is_beside(k)}
    heads = {re.sub(r"^visual\.(trunk\.)?", "", key) for key in beside}
    kept = {f"visual.{key}": shape for key, shape in image.shapes.items() if key not in heads}

    def read(key: str) -> np.ndarray:
        return source.read(key) if key in beside else image.read(key.removeprefix("visual."))

    entries = [_below(entry, "visual.") for entry in known]
    entries += _open_clip_beside(cfg, source.shapes)
    seen = WeightsFile(source.name, kept | beside, read)
    return PairFile(Codebase.OPEN_CLIP, seen, entries, _no_open_clip(source))


def _half(source: WeightsFile, start: str) -> WeightsFile:
    """Return the tensors whose names have a start."""
    shapes = {key: s for key, s in source.shapes.items() if key.startswith(start)}
    return source._replace(shapes=shapes)


def _below(entry: Entry, start: str) -> Entry:
    layers = tuple(
        tuple(part._replace(key=start + part.key) for part in parts) for parts in entry.layers
    )
    return dataclasses.replace(entry, layers=layers)


_IMAGE_HEADS = ("visual.proj", "visual.head.proj.weight", "visual.trunk.head.weight")


def _is_beside(key: str) -> bool:
    """Return whether a tensor is none of the image encoder's."""
    biases = ("visual.trunk.head.bias", "visual.head.proj.bias")
    return not key.startswith("visual.") or key in (*_IMAGE_HEADS, *biases)


def without_image_head(source: WeightsFile) -> WeightsFile:
    """Return open_clip's file without the layer from the images' features to the shared space."""
    heads = (*_IMAGE_HEADS, "visual.trunk.head.bias", "visual.head.proj.bias")
    shapes = {key: shape for key, shape in source.shapes.items() if key not in heads}
    return source._replace(shapes=shapes)


def _no_open_clip(source: WeightsFile) -> Callable[[str], bool]:
    """Return which keys are none of a pair's: sizes, masks, a bias of nothing but zeros."""

    def is_ignored(key: str) -> bool:
        if key == "visual.trunk.head.bias":  # timm's layer has one; no published pair uses it
            return not source.read(key).any()
        return bool(
            re.search(r"(^|\.)(attn_mask|position_ids)$", key)
            or key in ("input_resolution", "context_length", "vocab_size")
        )

    return is_ignored


def _open_clip_beside(
    cfg: TwoTowers, there: Mapping[str, Shape], start: str | None = None
) -> list[Entry]:
    rules, heads = facts.names("Text", "open_clip"), cfg.text.num_heads
    if start is None:
        start = "text." if "text.token_embedding.weight" in there else ""

    def place(name: str, shape: Shape, _: int) -> Any:
        layout = torch_layout(name, shape, heads)
        key = re.sub(r"/(kernel|scale)$", "/weight", renamed(name, rules)).replace("/", ".")
        parts = (FileTensor(start + key, layout.shape),)
        return parts, lambda parts: layout.decode(parts[0]), lambda x: [layout.encode(x)]

    shapes, found = _shapes(cfg), _text(cfg, place)
    if (name := f"{TEXT}/head/kernel") in shapes:
        plain = f"{start}text_projection"
        is_layer = cfg.text.projection is TowerHead.AFFINE or f"{plain}.weight" in there
        key = f"{plain}.weight" if is_layer else plain
        found.append(_matrix(name, key, shapes[name], is_torch=is_layer))
    if (name := f"{TEXT}/head/bias") in shapes:
        found.append(_vector(name, f"{start}text_projection.bias", shapes[name]))
    if (name := f"{IMAGE_HEAD}/kernel") in shapes:
        key = next((key for key in _IMAGE_HEADS if key in there), _IMAGE_HEADS[0])
        found.append(_matrix(name, key, shapes[name], is_torch=key != _IMAGE_HEADS[0]))
        if (bias := f"{IMAGE_HEAD}/bias") in shapes:
            found.append(_vector(bias, re.sub("weight$", "bias", key), shapes[bias]))
    found.append(_scalar(SCALE, "logit_scale", there.get("logit_scale", ())))
    if cfg.has_bias:
        found.append(_scalar(BIAS, "logit_bias", there.get("logit_bias", ())))
    return found


# big_vision


def _big_vision(source: WeightsFile, cfg: TwoTowers) -> PairFile:
    start = "params/" if "params/txt/Embed_0/embedding" in source.shapes else ""
    image = google.entries(cfg.image, source.shapes)
    entries = [*image, *_big_vision_beside(cfg, source.shapes, start)]
    ignored = ("opt/", "extra/")
    return PairFile(Codebase.BIG_VISION, source, entries, lambda key: key.startswith(ignored))


def _big_vision_beside(cfg: TwoTowers, there: Mapping[str, Shape], start: str) -> list[Entry]:
    rules, heads = facts.names("Text", "google"), cfg.text.num_heads
    stacks = any(key.startswith(f"{start}txt/Encoder_0/encoderblock/") for key in there)

    def place(name: str, shape: Shape, layer: int) -> Any:
        key, number = f"{start}txt/{renamed(name, rules)}", None
        if stacks and "/encoderblock_" in key:
            key, number = re.sub(r"encoderblock_\d+/", "encoderblock/", key), layer

        def one(key: str, shape: Shape) -> FileTensor:
            return FileTensor(
                key, (cfg.text.depth, *shape) if number is not None else shape, number
            )

        if "/qkv/" in name:
            each = (*shape[:-1], heads, shape[-1] // 3 // heads)
            parts = [one(key.replace("/qkv/", f"/{part}/"), each) for part in _GOOGLE_PARTS]
            return (
                tuple(parts),
                lambda values: np.stack(values, axis=-2).reshape(shape),
                lambda x: list(np.moveaxis(x.reshape(*each[:-1], 3, each[-1]), -2, 0)),
            )
        whole = shape
        if name == "position_embed":
            whole = (1, *shape)
        elif name.endswith("/proj/kernel"):
            whole = (heads, shape[0] // heads, shape[1])
        return (
            (one(key, whole),),
            lambda values: values[0].reshape(shape),
            lambda x: [x.reshape(whole)],
        )

    shapes, found = _shapes(cfg), _text(cfg, place)
    for ours, theirs in ((f"{TEXT}/head", "txt/head"), (IMAGE_HEAD, "img/head")):
        if (name := f"{ours}/kernel") in shapes:
            key = f"{start}{theirs}/kernel"
            found.append(_matrix(name, key, shapes[name], is_torch=False))
        if (name := f"{ours}/bias") in shapes:
            found.append(_vector(name, f"{start}{theirs}/bias", shapes[name]))
    found.append(_scalar(SCALE, f"{start}t", (1,)))
    if cfg.has_bias:
        found.append(_scalar(BIAS, f"{start}b", (1,)))
    return found


# The way out


def state(variables: Mapping[str, Any], cfg: TwoTowers, to: Codebase) -> dict[str, np.ndarray]:
    """Return a pair's variables under another code's names, in its shapes.

    Raises UserError: an encoder or a projection that the code has no names for.
    """
    return {
        Codebase.TRANSFORMERS: _to_transformers,
        Codebase.OPEN_CLIP: _to_open_clip,
        Codebase.BIG_VISION: _to_big_vision,
    }[to](variables, cfg)


def _to_transformers(variables: Mapping[str, Any], cfg: TwoTowers) -> dict[str, np.ndarray]:
    image = _vit(cfg, "transformers")
    if cfg.has_bias and cfg.image_projection is not TowerHead.NONE:
        raise UserError("SigLIP of transformers has no projection of images")
    layout = hf.LAYOUTS["clip" if image.pre_norm else "siglip"]
    found = hf.state(_image(variables), image, layout, "vision_model.")
    return found | _written(variables, _transformers_beside(cfg, {}))


def _to_open_clip(variables: Mapping[str, Any], cfg: TwoTowers) -> dict[str, np.ndarray]:
    image = _vit(cfg, "open_clip")
    if not image.pre_norm or image.rope != "none":  # what open_clip takes of timm
        below = export.to_timm(_image(variables), image)
        found = {f"visual.trunk.{key}": value for key, value in below.items()}
        beside = _open_clip_beside(cfg, {"visual.head.proj.weight": ()}, "text.")
        return found | _written(variables, beside)
    rules = facts.names("ViT", "open_clip")

    def place(name: str, shape: Shape, _: int) -> Any:
        layout = torch_layout(name, shape, image.num_heads)
        key = re.sub(r"/(kernel|scale)$", "/weight", renamed(name, rules)).replace("/", ".")
        parts = (FileTensor(f"visual.{key}", layout.shape),)
        return parts, None, lambda x: [layout.encode(x)]

    found = _written(_image(variables), layout_lib.entries(models.abstract(image), place))
    for key in ("visual.class_embedding", "visual.positional_embedding"):
        found[key] = found[key].reshape(found[key].shape[-2:] if "pos" in key else -1)
    return found | _written(variables, _open_clip_beside(cfg, {}, ""))


def _to_big_vision(variables: Mapping[str, Any], cfg: TwoTowers) -> dict[str, np.ndarray]:
    image = _image(variables)
    start = "params/"
    found = google.state(image, cfg.image, f"{start}img/")
    return found | _written(variables, _big_vision_beside(cfg, {}, start))


def _image(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the image encoder alone."""
    params = {k: v for k, v in variables["params"].items() if k not in two_towers.BESIDE}
    return {**variables, "params": params}


def _written(variables: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, np.ndarray]:
    leaves, found = dict(trees.named_leaves(variables)), {}
    for entry in entries:
        assert entry.encode is not None, "these layouts go both ways"
        value = np.asarray(leaves[entry.name])
        for parts, layer in zip(entry.layers, value if entry.stacked else [value], strict=True):
            for part, there in zip(parts, entry.encode(layer), strict=True):
                found[part.key] = np.array(there, order="C")  # 0-d stays so
    return found


def _vit(cfg: TwoTowers, code: str) -> ViTConfig:
    if not isinstance(cfg.image, ViTConfig):
        family = type(cfg.image).__name__.removesuffix("Config")
        raise UserError(f"{code} has no pairs with {family}; its image towers are ViTs")
    return cfg.image
