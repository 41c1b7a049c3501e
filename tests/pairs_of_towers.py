# SPDX-License-Identifier: Apache-2.0
"""The small pairs of tests/golden/image_text, of transformers and open_clip, by their names."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models, trees
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.text import TextConfig, TextInit, TextPool, TowerHead
from vit_jax.models.two_towers import TwoTowers
from vit_jax.text import vocabularies
from vit_jax.weights import two_towers as names
from vit_jax.weights.apply import fill
from vit_jax.weights.readers import npz_file, safetensors_file

GOLDEN = Path(__file__).with_name("golden") / "image_text"
# The file, and the golden whose outputs it has.
FILES = {
    "clip_quickgelu.safetensors": "clip_quickgelu",
    "open_clip.safetensors": "open_clip",
    "siglip.safetensors": "siglip",
    "siglip2.safetensors": "siglip2",
    "siglip_open_clip.safetensors": "siglip",
    "siglip_big_vision.npz": "siglip",
}


def _image(variant: str, **fields: Any) -> models.ModelConfig:
    small = {"num_classes": 0, "image_size": (32, 32), "patch": (8, 8), "dim": 32, "depth": 2}
    return models.variant(variant, **{**small, **fields})


def _siglip(image: models.ModelConfig, dim: int, **fields: Any) -> TwoTowers:
    text = TextConfig(
        dim=32,
        num_heads=4,
        mlp_dim=64,
        causal=False,
        pool=TextPool.LAST,
        projection=TowerHead.AFFINE,
        gelu=Gelu.TANH,
        norm_eps=1e-6,
        init=TextInit.SIGLIP,
        **fields,
    )
    none = TowerHead.NONE
    return TwoTowers(image=image, text=text, dim=dim, image_projection=none, has_bias=True)


def pair(name: str) -> TwoTowers:
    """Return the towers of a golden."""
    if name == "clip_quickgelu":
        image = _image("vit_b16_clip", num_heads=2, mlp_dim=64)
        sizes: dict[str, Any] = {"vocab_size": 99, "context": 12, "dim": 24, "depth": 2}
        text = TextConfig(num_heads=3, mlp_dim=48, **sizes)
        return TwoTowers(image=image, text=text, dim=20)
    if name == "open_clip":
        image = _image("vit_b16_clip", num_heads=2, mlp_dim=128, gelu="erf")
        sizes: dict[str, Any] = {"vocab_size": 96, "context": 11, "dim": 24, "depth": 2}
        text = TextConfig(num_heads=2, mlp_dim=96, gelu=Gelu.ERF, **sizes)
        return TwoTowers(image=image, text=text, dim=16)
    if name == "siglip2":
        image = _image("vit_b16_siglip", patch=(16, 16), dim=48, num_heads=4, mlp_dim=96)
        return _siglip(image, 48, vocab_size=256, context=16, depth=3)
    image = _image("vit_b16_siglip", num_heads=4, mlp_dim=64)
    return _siglip(image, 32, vocab_size=80, context=10, depth=2)


def tensors(file: str) -> dict[str, np.ndarray]:
    """Return all tensors of a file as float32."""
    reader = npz_file if file.endswith(".npz") else safetensors_file
    with reader.opened(str(GOLDEN / file)) as source:
        return {key: source.read(key) for key in source.shapes}


def read(file: str) -> tuple[TwoTowers, dict[str, Any]]:
    """Return a file's pair and its variables."""
    reader, cfg = npz_file if file.endswith(".npz") else safetensors_file, pair(FILES[file])
    with reader.opened(str(GOLDEN / file)) as source:
        found = names.opened(source, cfg)
        values = fill(found.entries, found.source, is_ignored=found.is_ignored)
        return cfg, jax.tree.map(jnp.asarray, trees.nest(values))


def folder(name: str, place: Path) -> Path:
    """Write a golden as a repository of transformers' or open_clip's, with a small tokenizer."""
    described = json.loads((GOLDEN / f"{name}.json").read_text())["config"]
    size = pair(name).text.vocab_size
    place.mkdir(parents=True)
    is_clip = name == "clip_quickgelu"
    special = ("<|startoftext|>", "<|endoftext|>") if is_clip else ("<unk>", "</s>")
    letters = [f"{x}{end}" for x in "abcdefghijklmnopqrstuvwxyz0123" for end in ("", "</w>")]
    words = [*letters, *(f"<{i}>" for i in range(size - len(letters) - 2)), *special]
    ids = {word: i for i, word in enumerate(words)}
    if not is_clip:  # SigLIP's end is 1
        ids[words[1]], ids["</s>"] = ids["</s>"], 1
    kind = "CLIPTokenizer" if is_clip else "SiglipTokenizer"
    files = {
        "config.json": json.dumps(described).encode(),
        "tokenizer.json": vocabularies.clip_json(ids, [], special, nfc=True),
        "tokenizer_config.json": json.dumps({"tokenizer_class": kind}).encode(),
        "model.safetensors": (GOLDEN / f"{name}.safetensors").read_bytes(),
    }
    for file, data in files.items():
        (place / file).write_bytes(data)
    return place
