# SPDX-License-Identifier: Apache-2.0
"""A trained ViT as a folder that transformers loads, its images' preparation included."""

import json
from typing import Any

import safetensors.numpy

from vit_jax.inference.trained import Trained
from vit_jax.models.losses import Loss
from vit_jax.weights import hf_export
from vit_jax.weights.published import hf_images
from vit_jax.weights.readers.repository import CONFIG, WEIGHTS


def check(trained: Trained) -> None:
    """Refuse, before weights are read, what no model of transformers' computes.

    Raises UserError: naming the field that stands in the way.
    """
    hf_export.config(trained.model, trained.class_names)
    _images(trained)


def make(trained: Trained) -> dict[str, bytes]:
    """Return the files of a model with its weights that `check` lets pass.

    Raises UserError: the weights need what transformers lacks.
    """
    state = hf_export.to_hf(trained.variables, trained.model)
    several = trained.loss is not Loss.SOFTMAX
    config = hf_export.config(trained.model, trained.class_names, several=several)
    return {
        WEIGHTS: safetensors.numpy.save(state, metadata={"format": "pt"}),
        hf_images.FILE: _json(_images(trained)),
        CONFIG: _json(config),
    }


def _images(trained: Trained) -> dict[str, Any]:
    size, channels = trained.image_size, trained.channels
    return hf_images.written(trained.mean, trained.std, trained.transform, size, channels)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
