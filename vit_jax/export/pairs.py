# SPDX-License-Identifier: Apache-2.0
"""A trained pair of towers as transformers, open_clip and big_vision load it.

What is written is described again from its own config, and refused where that is another pair.
Sources: transformers 5.23 configuration_clip.py, configuration_siglip.py; open_clip_torch 3.3.0
model.py, factory.py.
"""

import dataclasses
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from vit_jax import models
from vit_jax.data import Crop, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.export import transformers
from vit_jax.inference import image_text
from vit_jax.inference.pairs import Pair
from vit_jax.inference.trained import Trained
from vit_jax.models import ViTConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.rope import Rope
from vit_jax.models.text import TextPool, TowerHead
from vit_jax.models.two_towers import TwoTowers
from vit_jax.storage import files, foreign
from vit_jax.text import published, tokenizers, vocabularies
from vit_jax.text.cleaning import Clean
from vit_jax.text.tokenizers import Tokenizer
from vit_jax.weights import two_towers as names
from vit_jax.weights.config import KINDS, split
from vit_jax.weights.names import hf_config
from vit_jax.weights.published import hf_images, pairs, timm_config, words
from vit_jax.weights.published.pairs import OPEN_CLIP
from vit_jax.weights.readers import repository
from vit_jax.weights.readers.repository import CONFIG, OPEN_CLIP_WEIGHTS, WEIGHTS
from vit_jax.weights.two_towers import Codebase

_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_pytorch_tanh", Gelu.QUICK: "quick_gelu"}
# How open_clip cleans texts for others' tokenizers.
_CLEAN = {Clean.REPAIR_CANONICAL: "canonicalize", Clean.REPAIR_SPACES: "whitespace"}
_FREE = {"init", "dtype", "remat", "scan_unroll", "zero_head", "head_bias", "attention"}
_FREE |= {"dropout_rate", "attention_dropout_rate", "drop_path_rate", "drop_path_rule"}
_FREE |= {"dynamic_image_size"}


def check(towers: TwoTowers, to: Codebase) -> None:
    """Refuse, before weights are read, a pair that a code has no network for.

    Raises UserError: naming the field that stands in the way.
    """
    if to is Codebase.TRANSFORMERS:
        transformers_config(towers)
    elif to is Codebase.OPEN_CLIP:
        open_clip_config(towers)


def make_folder(trained: Trained, pair: Pair, to: Codebase) -> dict[str, bytes]:
    """Return the files of a folder that transformers or open_clip loads.

    The tokenizer's published files are among them; where there are none, or they would be read as
    another one, words.OWN is, which this package alone reads.

    Raises UserError: what `check` does, or an encoder with options of its own.
    """
    state = names.state(image_text.both(trained, pair), pair.towers, to)
    weights = safetensors.numpy.save(state, metadata={"format": "pt"})
    if to is Codebase.TRANSFORMERS:
        size = trained.image_size
        images = (trained.mean, trained.std, trained.transform, size, trained.channels)
        found = {
            WEIGHTS: weights,
            hf_images.FILE: _json(hf_images.written(*images)),
            CONFIG: _json(transformers_config(pair.towers, pair.tokenizer)),
        }
        return _with_tokenizer(found, trained, pair.tokenizer)
    tree = {**open_clip_config(pair.towers), "preprocess_cfg": _open_clip_images(trained)}
    found = {OPEN_CLIP_WEIGHTS: weights, OPEN_CLIP: _json(tree)}
    if pair.tokenizer.clean in _CLEAN or _published(trained):
        text = tree["model_cfg"]["text_cfg"]
        named = split(trained.source)[1].partition("@")[0] if _published(trained) else ""
        text |= {"hf_tokenizer_name": named, "tokenizer_kwargs": _cleaned(pair.tokenizer)}
        own = {**found, OPEN_CLIP: _json(tree)}
        with_files = _with_tokenizer(own, trained, pair.tokenizer)
        if words.OWN not in with_files:
            return with_files
    return _with_tokenizer(found, trained, pair.tokenizer)


def make_npz(trained: Trained, pair: Pair) -> bytes:
    """Return the .npz of both towers under big_vision's names.

    Raises UserError: an encoder that big_vision has no names for.
    """
    state = names.state(image_text.both(trained, pair), pair.towers, Codebase.BIG_VISION)
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **state)
    return out.getvalue()


def transformers_config(towers: TwoTowers, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Return config.json of CLIPModel, or of SiglipModel where logits have a bias.

    Raises UserError: neither computes what the pair does.
    """
    kind, text = "siglip" if towers.has_bias else "clip", towers.text
    vision = transformers.config(towers.image, ())
    del vision["architectures"]
    about: dict[str, Any] = {
        "model_type": f"{kind}_text_model",
        "hidden_size": text.dim,
        "num_hidden_layers": text.depth,
        "num_attention_heads": text.num_heads,
        "intermediate_size": text.mlp_dim,
        "max_position_embeddings": text.context,
        "vocab_size": text.vocab_size,
        "hidden_act": _ACTS[text.gelu],
        "layer_norm_eps": text.norm_eps,
    }
    if tokenizer is not None:
        about |= {"bos_token_id": tokenizer.start, "pad_token_id": tokenizer.pad}
        about["eos_token_id"] = tokenizer.end
    if kind == "clip":
        about |= {"projection_dim": towers.dim, "eos_token_id": text.end_id or 2}  # 2: the largest
        vision["projection_dim"] = towers.dim
        tree = {"model_type": kind, "architectures": ["CLIPModel"], "projection_dim": towers.dim}
    else:
        about["projection_size"] = towers.dim
        tree = {"model_type": kind, "architectures": ["SiglipModel"]}
    tree |= {"text_config": about, "vision_config": vision}
    tree["dtype"] = "float32"
    head = "text_projection.weight" if kind == "clip" else "text_model.head.weight"
    shapes = {head: (towers.dim, text.dim), "vision_model.embeddings.patch_embedding.weight": ()}
    if getattr(towers.image, "pool", None) is Pool.MAP:
        shapes["vision_model.head.probe"] = ()
    image = hf_config.model(tree, shapes, CONFIG)
    if differ := _differences(towers, pairs.transformers(tree, image, shapes, CONFIG)):
        raise UserError(f"transformers' {kind} has no such pair: {differ[0]}")
    return tree


def open_clip_config(towers: TwoTowers) -> dict[str, Any]:
    """Return open_clip_config.json of a pair, without its preprocessing.

    Raises UserError: open_clip names no such network.
    """
    image, text = towers.image, towers.text
    if not isinstance(image, ViTConfig):
        raise UserError("open_clip has no pairs with others than ViTs here")
    quick = text.gelu is Gelu.QUICK
    about: dict[str, Any] = {
        "context_length": text.context,
        "vocab_size": text.vocab_size,
        "width": text.dim,
        "heads": text.num_heads,
        "layers": text.depth,
        "mlp_ratio": text.mlp_dim / text.dim,
        "no_causal_mask": not text.causal,
        "pool_type": "eos" if text.end_id else _POOLS[text.pool],
        "proj_type": "none" if text.projection is TowerHead.NONE else "linear",
        "proj_bias": text.projection is TowerHead.AFFINE,
        "norm_kwargs": {"eps": text.norm_eps},
    }
    if text.end_id:
        about["eos_id"] = text.end_id
    if text.layer_scale:
        about["ls_init_value"] = text.layer_scale
    if text.gelu is Gelu.TANH:
        about["act_kwargs"] = {"approximate": "tanh"}
    whole: dict[str, Any] = {"embed_dim": towers.dim, "quick_gelu": quick, "text_cfg": about}
    if towers.has_bias:
        whole["init_logit_bias"] = -10
    nearest: list[str] = []
    for vision in _visions(towers):
        is_trunk = "timm_model_name" in vision
        config = {**whole, "vision_cfg": vision, **({"custom_text": True} if is_trunk else {})}
        try:
            theirs = pairs.open_clip(config, OPEN_CLIP)
        except UserError:  # that network does not come in such a size
            continue
        if not isinstance(theirs.image, ViTConfig):
            continue
        differ = _differences(towers, theirs)
        if not differ:
            return {"model_cfg": config}
        nearest = differ if not nearest or len(differ) < len(nearest) else nearest
    raise UserError(f"open_clip has no such pair: {nearest[0] if nearest else 'no such ViT'}")


def _visions(towers: TwoTowers) -> Iterator[dict[str, Any]]:
    """Yield what vision_cfg may be: open_clip's own ViT, or a network of timm's."""
    image = towers.image
    assert isinstance(image, ViTConfig)
    if image.pre_norm and image.rope is Rope.NONE:  # as `names.state` writes them
        yield _native_vision(image)
        return
    for name in timm_config.architectures():
        if name.startswith("vit_"):
            yield _trunk_vision(name, towers)


_POOLS = {TextPool.END: "argmax", TextPool.LAST: "last", TextPool.FIRST: "first"}


def _native_vision(image: ViTConfig) -> dict[str, Any]:
    """Return vision_cfg of open_clip's own ViT."""
    found: dict[str, Any] = {
        "image_size": _sides(image, "image_size"),
        "patch_size": _sides(image, "patch"),
        "layers": image.depth,
        "width": image.dim,
        "head_width": image.dim // image.num_heads,
        "mlp_ratio": image.mlp_dim / image.dim,
    }
    if image.layer_scale:
        found["ls_init_value"] = image.layer_scale
    if image.pool is Pool.GAP:
        found |= {"pool_type": "avg", "final_ln_after_pool": image.fc_norm}
    return found


def _trunk_vision(name: str, towers: TwoTowers) -> dict[str, Any]:
    """Return vision_cfg of a network of timm's."""
    pool = {Pool.MAP: "map", Pool.CLS: "token", Pool.GAP: "avg"}[towers.image.pool]  # pyright: ignore[reportAttributeAccessIssue]
    projected = towers.image_projection is not TowerHead.NONE
    return {
        "timm_model_name": name,
        "timm_model_pretrained": False,
        "timm_pool": pool,
        "timm_proj": "linear" if projected else "none",
        "timm_proj_bias": towers.image_projection is TowerHead.AFFINE,
        "image_size": _sides(towers.image, "image_size"),
    }


def _sides(image: Any, field: str) -> int | list[int]:
    sides = models.pair(getattr(image, field), field)
    return sides[0] if sides[0] == sides[1] else list(sides)


def _open_clip_images(trained: Trained) -> dict[str, Any]:
    """Return preprocess_cfg; open_clip resizes to the whole side, so that nothing is cut of it."""
    transform = trained.transform
    cubic = transform.resize in (Resize.BICUBIC, Resize.BICUBIC_NO_ANTIALIAS)
    height, width = trained.image_size
    return {
        "size": height if height == width else [height, width],
        "mode": "RGB" if trained.channels == 3 else "L",
        "mean": list(trained.mean) * (trained.channels if len(trained.mean) == 1 else 1),
        "std": list(trained.std) * (trained.channels if len(trained.std) == 1 else 1),
        "interpolation": "bicubic" if cubic else "bilinear",
        "resize_mode": "shortest" if transform.crop is Crop.CENTER else "squash",
        "fill_color": 0,
    }


def crops_otherwise(transform: TransformConfig) -> bool:
    """Return whether open_clip has no way to cut images as a transform does."""
    whole = transform.crop is Crop.RESIZE
    return not whole and not (transform.crop is Crop.CENTER and transform.crop_ratio == 1)


def _differences(towers: TwoTowers, theirs: TwoTowers) -> list[str]:
    """Tell in which fields a config describes another pair."""
    found = []
    for place, own, other in (
        ("model", towers.image, theirs.image),
        ("text", towers.text, theirs.text),
        ("pair", towers, theirs),
    ):
        for field in dataclasses.fields(own):
            values = [getattr(each, field.name) for each in (own, other)]
            if field.name in _FREE or field.name in ("image", "text"):
                continue
            if field.name in ("image_size", "patch"):
                values = [models.pair(each, field.name) for each in values]
            if values[0] != values[1]:
                found.append(f"{place}.{field.name} is {values[1]} there, and here {values[0]}")
    return found


# Tokenizers

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
_FILES += ("merges.txt", "spiece.model", "tokenizer.model")


def _published(trained: Trained) -> bool:
    return split(trained.source)[0] in KINDS


def _cleaned(tokenizer: Tokenizer) -> dict[str, str]:
    return {"clean": _CLEAN[tokenizer.clean]} if tokenizer.clean in _CLEAN else {}


def _with_tokenizer(
    contents: Mapping[str, bytes], trained: Trained, tokenizer: Tokenizer
) -> dict[str, bytes]:
    """Add the tokenizer's files: none where the config tells it, else those that are published."""
    theirs = _tokenizer_files(trained) if _published(trained) else {}
    for found in ({**contents}, {**contents, **theirs}):
        if _is_told(found, tokenizer):
            return found
    return {**contents, words.OWN: tokenizers.dumped(tokenizer)}


def _tokenizer_files(trained: Trained) -> dict[str, bytes]:
    found = repository.opened(split(trained.source)[1])
    paths = {name: found.find(name, vocabularies.MOST) for name in _FILES}
    return {
        name: foreign.read(path, vocabularies.MOST)
        for name, path in paths.items()
        if path is not None
    }


def _is_told(contents: Mapping[str, bytes], tokenizer: Tokenizer) -> bool:
    """Return whether a folder's files are read as this tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in contents.items():
            if name not in (WEIGHTS, OPEN_CLIP_WEIGHTS):
                files.write(Path(folder) / name, data)
        try:
            return published.describe_folder(folder).digest == tokenizer.digest
        except UserError:
            return False


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
