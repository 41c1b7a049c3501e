# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of runs that never ran: of any model, with random numbers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import models, trees
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.models import ModelConfig
from vit_jax.train.state import TrainState


def make_state(model: ModelConfig, seed: int, *, with_ema: bool = False) -> TrainState:
    """Make a state of random numbers, which takes no compilation."""
    rng = np.random.default_rng(seed)

    def draw(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), tree)

    abstract = models.abstract(model)
    variables = draw(abstract)
    params = variables.pop("params")
    return TrainState(
        step=jnp.int32(seed),
        params=params,
        model_state=jax.tree.map(jnp.abs, variables),  # of BatchNorm's variances
        opt_state=optax.sgd(0.1, momentum=0.9).init(params),
        ema=draw(abstract) if with_ema else None,
        rng=jax.random.key(seed),
    )


def save(
    workdir: Path,
    model: ModelConfig,
    scores: dict[int, float | None],
    *,
    with_ema: bool = False,
    mesh: Any = None,
    **settings: Any,
) -> dict[int, TrainState]:
    """Save a run's checkpoints as the training loop does; returns the state of each step."""
    checkpoint = CheckpointConfig(keep=9, **settings)
    cfg = Config(model=model, checkpoint=checkpoint, ema_decay=0.9 if with_ema else 0.0)
    metadata = {"config": config_json.to_json(cfg)}
    checkpoints = Checkpointer(workdir / "checkpoints", checkpoint)
    states = {}
    for step, score in scores.items():
        state = make_state(model, step, with_ema=with_ema)
        if mesh is not None:
            state = jax.device_put(state, sharding.shardings(state, mesh))
        metrics = {} if score is None else {"val/top1": score}
        checkpoints.save(step, state, metadata=metadata, metrics=metrics)
        states[step] = state
    checkpoints.wait()
    return states


def assert_equal(loaded: dict[str, Any], params: Any, model_state: Any = None) -> None:
    expected = {"params": params, **(model_state or {})}
    dtypes = [
        {name: leaf.dtype for name, leaf in trees.named_leaves(tree)} for tree in (loaded, expected)
    ]
    assert dtypes[0] == dtypes[1]
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)
