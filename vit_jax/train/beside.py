# SPDX-License-Identifier: Apache-2.0
"""What weights of a run of two towers may have beside the model."""

import jax

from vit_jax import objectives
from vit_jax.config.tree import Config
from vit_jax.objectives.beside import own
from vit_jax.weights.layout import Own


def of_pair(cfg: Config) -> Own | None:
    """Return what weights of two towers may have beside the model; None for all other runs."""
    if not cfg.objective.embeds_texts:
        return None
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    params, _ = jax.eval_shape(objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    return own(objective, params)
