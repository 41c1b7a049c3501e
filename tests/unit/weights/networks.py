# SPDX-License-Identifier: Apache-2.0
"""Folders of published networks, with random weights and small."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy

from tests.unit.inference.exported import trained
from vit_jax import models, weights
from vit_jax.export import transformers as transformers_folder
from vit_jax.inference.trained import Trained
from vit_jax.models import ModelConfig

SMALL = {"dim": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "image_size": (32,)}


def as_transformers(cfg: ModelConfig, **fields: Any) -> tuple[Trained, dict[str, bytes]]:
    """Return a random model, and its files as transformers has them."""
    model = trained(cfg, **fields)
    return model, transformers_folder.make(model)


def as_timm(
    architecture: str, cfg: ModelConfig, args: Mapping[str, Any], **about: Any
) -> tuple[Trained, dict[str, bytes]]:
    """Return a random model, and its files as timm has them, with arguments that make it small."""
    model = trained(cfg)
    height, width, channels = models.input_shape(cfg)
    config = {
        "architecture": architecture,
        "num_classes": cfg.num_classes,
        "model_args": dict(args),
        "pretrained_cfg": {
            "tag": "made_up",
            "input_size": [channels, height, width],
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": [0.5, 0.4, 0.3][:channels],
            "std": [0.25] * channels,
            **about,
        },
    }
    state = weights.to_timm(model.variables, cfg)
    return model, {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": safetensors.numpy.save(state),
    }


def put(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder, which may be there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def changed(files: Mapping[str, bytes], file: str, **values: Any) -> dict[str, bytes]:
    """Return files with values of a JSON file changed; None takes one away."""
    tree = json.loads(files[file]) | values
    tree = {key: value for key, value in tree.items() if value is not None}
    return {**files, file: json.dumps(tree).encode()}
