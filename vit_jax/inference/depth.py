# SPDX-License-Identifier: Apache-2.0
"""The depth of each pixel of one image, by a run or a published model.

A run sees the whole image at its own size, as its evaluations do. A published model sees it in its
shape, of about the model's size and cut into whole patches, as transformers' DPTImageProcessor has
it for Depth Anything. Differs from transformers for DPT on DINOv2, whose processor leaves an image
as large as it is and puts grey around it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, UInt8

from vit_jax import models, objectives
from vit_jax.data import DataConfig
from vit_jax.data.images import ops
from vit_jax.errors import UserError
from vit_jax.evals.dense.depth import resized
from vit_jax.inference import dense
from vit_jax.inference.trained import Trained
from vit_jax.models import ModelConfig
from vit_jax.objectives import ObjectiveConfig
from vit_jax.trees import PyTree
from vit_jax.weights import resize as resize_lib
from vit_jax.weights.config import ResizeRule

_TABLE = "pos_embed"


def estimate(trained: Trained, image: UInt8[np.ndarray, "H W C"]) -> Float32[np.ndarray, "H W"]:
    """Return the depth of each pixel, in the unit that the model has learned; metres of most.

    Models of relative depths return numbers that grow as things come nearer.

    Raises UserError: a model that says nothing of depths.
    """
    learned = dense.objective(trained)
    if "depth" not in learned.cfg.predicts:
        raise UserError(f"{trained.ref} says nothing of depths; give a run or a model of depth")
    size = trained.image_size
    if trained.config is None:
        size = shaped(
            image.shape[:2], size, models.pair(getattr(trained.model, "patch", ()), "patch")
        )
    model, variables = at_size(trained.model, trained.variables, size)
    run = _program(learned.cfg, model, tuple(trained.mean), tuple(trained.std))
    seen = ops.resize(image, size, trained.transform.resize)
    found = np.asarray(run(variables, jnp.asarray(seen[None])))[0]
    return resized(found, (image.shape[0], image.shape[1]))


def shaped(
    image: tuple[int, ...], wanted: tuple[int, int], patch: tuple[int, int]
) -> tuple[int, int]:
    """Return (H, W) of about the wanted size, in whole patches, that keeps an image's shape.

    Both sides are multiplied by one factor: that by which the height, or the width, becomes the
    wanted one, whichever is nearer to 1 (transformers 5.23 `get_resize_output_image_size`).
    """
    factor = min((w / i for w, i in zip(wanted, image, strict=True)), key=lambda x: abs(1 - x))
    sides = (max(round(factor * i / p), 1) * p for i, p in zip(image, patch, strict=True))
    height, width = sides
    return height, width


def at_size(model: ModelConfig, variables: PyTree, size: tuple[int, int]) -> tuple[Any, PyTree]:
    """Return a model for images of another size, with its positions brought there.

    By transformers' rules: of DINOv2 bicubic without antialias, of DPT's own ViT bilinear.
    """
    if models.input_shape(model)[:2] == size:
        return model, variables
    other = models.with_fields(model, {"image_size": size})
    if (table := variables["params"].get(_TABLE)) is None:
        return other, variables
    is_plain = not getattr(model, "layer_scale", 0)
    rule = ResizeRule.TIMM_NPZ if is_plain else ResizeRule.OFFICIAL
    resize = resize_lib.resizer(rule, other, model)
    shape = models.abstract(other)["params"][_TABLE].shape
    assert resize is not None, "only the rule `none` has none"
    moved = jnp.asarray(resize(_TABLE, np.asarray(table), shape))
    return other, {**variables, "params": {**variables["params"], _TABLE: moved}}


@functools.lru_cache(maxsize=32)  # a program for each size that is seen
def _program(
    cfg: ObjectiveConfig, model: ModelConfig, mean: tuple[float, ...], std: tuple[float, ...]
) -> Callable[[PyTree, jax.Array], jax.Array]:
    given = dataclasses.replace(DataConfig(), mean=mean, std=std)
    predict = objectives.create(cfg, model, given).predictors["depth"]
    return jax.jit(lambda variables, image: predict(variables, {"image": image}))
