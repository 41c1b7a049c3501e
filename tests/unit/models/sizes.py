# SPDX-License-Identifier: Apache-2.0
"""What the tables of published sizes say of a model, found in one trace of it."""

import jax
import jax.numpy as jnp

from vit_jax import models, trees
from vit_jax.cost import flops
from vit_jax.models import ModelConfig


def params_and_flops(cfg: ModelConfig) -> tuple[int, int]:
    """Return how many parameters a model has, and the FLOPs of one image; a stack is a loop."""
    found = []

    def run(image: jax.Array) -> jax.Array:
        module = models.create(models.looped(cfg))
        out, variables = module.init_with_output(jax.random.key(0), image)
        found.append(trees.num_params(variables["params"]))
        return out.logits

    counted = flops.count(run, jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32))
    (params,) = found
    return params, counted
