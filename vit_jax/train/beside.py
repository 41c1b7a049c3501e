# SPDX-License-Identifier: Apache-2.0
"""What a run's objective trains beside its model, as weights are read: a decoder, a text tower."""

import jax

from vit_jax import objectives
from vit_jax.config.tree import Config
from vit_jax.objectives import Objective
from vit_jax.trees import PyTree
from vit_jax.weights.layout import Own


def own(objective: Objective, params: PyTree, state: PyTree = None) -> Own | None:
    """Return what an objective trains beside the model, by the shapes of all parameters."""
    return objective.beside(params, state)


def of_pair(cfg: Config) -> Own | None:
    """Return what weights of two towers may have beside the model; None for all other runs."""
    if not cfg.objective.embeds_texts:
        return None
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    params, _ = jax.eval_shape(objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    return own(objective, params)
