# SPDX-License-Identifier: Apache-2.0
"""A trained model of pixels, of a run or a published file: its weights, and what it predicts.

Whatever asks a run's objective for a predictor asks a published file alike: that has the objective
by which it would be trained further.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax import models, objectives, trees, weights
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.inference.trained import Trained, describe, with_model
from vit_jax.models.dense.dpt import DptConfig
from vit_jax.models.dense.eomt import EomtHead
from vit_jax.objectives import Objective, ObjectiveConfig, Predict
from vit_jax.objectives.base import own
from vit_jax.weights.config import ResizeRule


def objective(trained: Trained) -> Objective:
    """Return the objective of a run, or that by which a published file would be trained further.

    Raises UserError: a model that says nothing of pixels.
    """
    cfg = _config(trained)
    given = trained.config.data if trained.config else DataConfig()
    given = dataclasses.replace(given, mean=trained.mean, std=trained.std)
    return objectives.create(cfg, trained.model, given)


def _config(trained: Trained) -> ObjectiveConfig:
    if trained.config is not None and trained.head is not None:
        return trained.config.objective
    if isinstance(trained.head, EomtHead):
        from vit_jax.objectives.dense.eomt import EomtConfig  # late, as all objectives

        return EomtConfig.of(trained.head)
    if isinstance(trained.head, DptConfig):
        from vit_jax.objectives.dense.depth import DepthConfig, DepthHead

        return DepthConfig(head=DepthHead.DPT, dpt=trained.head)
    raise UserError(
        f"{trained.ref} says nothing of an image's pixels; give a run of segmentation or depth, or "
        "a published EoMT, DPT or Depth Anything"
    )


def predictors(trained: Trained) -> Mapping[str, Predict]:
    """Return what a model of pixels predicts, by name: "segmentation", "segments", "depth".

    Raises UserError: a model that says nothing of pixels.
    """
    return objective(trained).predictors


def load(ref: str, *, resize: ResizeRule = ResizeRule.AUTO, **fields: Any) -> Trained:
    """Load a model of pixels, as `trained.load` does one of images: `load("hf:tue-mps/...")`.

    `fields` of the encoder are changed.

    Raises UserError: no such weights, or weights that do not fit.
    """
    found = describe(ref)
    found = with_model(found, models.with_fields(found.model, fields))
    return read_weights(found, resize=resize)


def read_weights(trained: Trained, *, resize: ResizeRule = ResizeRule.AUTO) -> Trained:
    """Read the weights of an encoder and of what stands beside it.

    Raises UserError: weights that do not fit, or lack one of the two.
    """
    learned = objective(trained)
    params, state = jax.eval_shape(learned.init, jax.eval_shape(lambda: jax.random.key(0)))
    shapes = {"params": params, **state}
    beside = own(learned, params, state)
    found = weights.read(trained.source, trained.model, resize=resize, ema=trained.ema, own=beside)
    lacking = [name for name, _ in trees.named_leaves(shapes) if name not in found]
    if lacking:
        raise UserError(
            f"{trained.ref} lacks what stands beside the encoder, as {lacking[0]}; it starts a run "
            "by init.weights"
        )
    variables: Any = trees.nest(dict(found))
    return dataclasses.replace(trained, variables=variables, has_head=True)
