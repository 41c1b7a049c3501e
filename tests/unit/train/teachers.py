# SPDX-License-Identifier: Apache-2.0
"""Teachers that never trained: a checkpoint of any model, with its statistics off their start."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from tests.unit.weights.runs import make_state
from vit_jax import models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.models import ModelConfig


def variables(model: ModelConfig, seed: int = 0) -> dict[str, Any]:
    """Draw initial parameters, logits far apart, and statistics that are not those of a batch."""
    key = jax.random.key(seed)
    params, state = jax.jit(lambda key: models.init(models.create(model), model, key))(key)
    params["head"]["kernel"] = 3 * jax.random.normal(key, params["head"]["kernel"].shape)
    # Around where they start: a mean far off leaves nothing that a ReLU lets through.
    moved = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(key, x.shape).clip(-2, 2), state)
    return {"params": params, **moved}


def save(workdir: Path, model: ModelConfig, seed: int = 0) -> str:
    """Save a checkpoint of `model`; returns what `objective.distill.weights` calls it."""
    drawn = variables(model, seed)
    params = drawn.pop("params")
    state = dataclasses.replace(make_state(model, 1), params=params, model_state=drawn)
    checkpoints = Checkpointer(workdir / "checkpoints", CheckpointConfig(keep_best=0))
    checkpoints.save(
        1, state, metadata={"config": config_json.to_json(Config(model=model))}, metrics={}
    )
    checkpoints.wait()
    return f"ckpt:{workdir}"
