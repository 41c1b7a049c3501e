# SPDX-License-Identifier: Apache-2.0
"""A run whose model names the colour of the one patch that is not black, and images for it."""

import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from PIL import Image

from tests.unit.weights import runs
from vit_jax import models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models.layers.pool import Pool

MODEL = models.variant(
    "vit_mu16",
    patch=(8, 8),
    image_size=(32, 32),
    num_classes=3,
    dim=8,
    depth=1,
    num_heads=1,
    mlp_dim=8,
    class_token=False,
    pool=Pool.GAP,
    scan_unroll=1,
)
NAMES = ["red", "green", "blue"]


def save_run(place: Path) -> Path:
    cfg = Config(model=MODEL)
    cfg.data.mean, cfg.data.std = (0.0,), (1.0,)
    cfg.evals = {"val": ClassifyEval(transform=TransformConfig(crop=Crop.RESIZE))}
    metadata = {"config": config_json.to_json(cfg), "class_names": NAMES}
    checkpoints = Checkpointer(place / "checkpoints", CheckpointConfig())
    state = dataclasses.replace(runs.make_state(MODEL, 1234), params=_params())
    checkpoints.save(1234, state, metadata=metadata, metrics={})
    checkpoints.wait()
    return place


def _params() -> dict[str, Any]:
    """Make a ViT by hand that names the colour of the one patch that is not black, and looks there.

    A token is its patch's mean colour; every query is the same, and answers to whatever has colour.
    """
    params = runs.make_state(MODEL, 0).params
    flat = {"/".join(path): np.zeros(x.shape, np.float32) for path, x in _leaves(params)}
    color = np.arange(3)
    flat["patch_embed/kernel"][:, :, color, color] = 1 / 64
    for name in ("blocks/norm1", "blocks/norm2", "norm"):
        flat[f"{name}/scale"] += 1
    flat["blocks/attn/qkv/bias"][0, 0] = 10  # of the query
    flat["blocks/attn/qkv/kernel"][0, color, 8] = 1  # of the key
    flat["head/kernel"][color, color] = 20
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = jnp.asarray(value)
    return tree


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def photo(color: int, *, orientation: int = 1) -> bytes:
    """Write a black JPEG with a coloured patch in the first corner, as a phone that was turned."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:16, :16, color] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0, exif=exif)
    return file.getvalue()


def half_png() -> bytes:
    """Write a PNG of noise, and leave out its end."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()[:-40]
