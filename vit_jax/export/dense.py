# SPDX-License-Identifier: Apache-2.0
"""A trained EoMT, DPT or Depth Anything as a folder that transformers loads."""

import json
from typing import Any

import numpy as np
import safetensors.numpy

from vit_jax import models
from vit_jax.data import Resize
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError
from vit_jax.export import transformers
from vit_jax.inference.trained import Trained
from vit_jax.models.dense.dpt import DptConfig
from vit_jax.models.dense.eomt import EomtHead
from vit_jax.weights.names import eomt, hf, hf_depth
from vit_jax.weights.published import hf_images
from vit_jax.weights.readers.repository import CONFIG, WEIGHTS


def check(trained: Trained) -> None:
    """Refuse, before weights are read, what no model of transformers' computes.

    Raises UserError: naming the field that stands in the way.
    """
    if isinstance(trained.head, DptConfig):
        _depth(trained)
        return
    if not isinstance(trained.head, EomtHead):
        raise UserError(
            f"{trained.ref}: transformers has no encoder with a {type(trained.head).__name__}; "
            "--to=timm:FILE.safetensors writes the encoder alone"
        )
    eomt.config(trained.model, trained.head, trained.class_names)


def make(trained: Trained) -> dict[str, bytes]:
    """Return the files of a model with its weights that `check` lets pass."""
    if isinstance(trained.head, DptConfig):
        layout = hf.LAYOUTS["vit" if transformers.kind(trained.model) == "vit" else "dinov2"]
        tensors = hf_depth.state(trained.variables, trained.model, trained.head, layout)
        return {
            WEIGHTS: safetensors.numpy.save(tensors, metadata={"format": "pt"}),
            hf_images.FILE: _json(_depth_images(trained)),
            CONFIG: _json(_depth(trained)),
        }
    state = eomt.state(trained.variables, trained.model, trained.head)
    described = eomt.config(trained.model, trained.head, trained.class_names)
    return {
        WEIGHTS: safetensors.numpy.save(state, metadata={"format": "pt"}),
        hf_images.FILE: _json(_images(trained)),
        CONFIG: _json(described),
    }


def _depth(trained: Trained) -> dict[str, Any]:
    """Return config.json of a DPT head, whose encoder is a DINOv2 or a plain ViT.

    Raises UserError: another encoder, or a head of neither model.
    """
    kind = transformers.kind(trained.model)
    if kind not in ("dinov2", "dinov2_with_registers", "vit") or (
        kind == "vit" and trained.head.to_next
    ):
        raise UserError(
            f"{trained.ref}: its encoder is a {kind} to transformers, and this head is written on "
            "a dinov2: a ViT with a class token and model.layer_scale"
        )
    backbone = transformers.config(trained.model, ())
    return hf_depth.written(trained.head, trained.model, backbone)


def _depth_images(trained: Trained) -> dict[str, Any]:
    """Return preprocessor_config.json; of a published model images keep their shapes."""
    height, width = trained.image_size
    patch = models.pair(getattr(trained.model, "patch", ()), "patch")
    return {
        **_normalised(trained, "DPTImageProcessor"),
        "size": {"height": height, "width": width},
        "keep_aspect_ratio": trained.config is None,
        "ensure_multiple_of": patch[0],
        "do_pad": False,
    }


def _images(trained: Trained) -> dict[str, Any]:
    """Return preprocessor_config.json: windows of the longer side for classes, else padding."""
    side, cfg = trained.image_size[0], trained.config
    windows = cfg is not None and cfg.objective.pixel_target == TargetKind.PIXELS
    return {
        **_normalised(trained, "EomtImageProcessor"),
        "size": {"shortest_edge": side, "longest_edge": None if windows else side},
        "do_split_image": windows,
        "do_pad": not windows,
    }


def _normalised(trained: Trained, processor: str) -> dict[str, Any]:
    cubic = trained.transform.resize in (Resize.BICUBIC, Resize.BICUBIC_NO_ANTIALIAS)
    return {
        "image_processor_type": processor,
        "do_resize": True,
        "resample": 3 if cubic else 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": np.broadcast_to(trained.mean, trained.channels).tolist(),
        "image_std": np.broadcast_to(trained.std, trained.channels).tolist(),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
