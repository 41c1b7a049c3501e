# SPDX-License-Identifier: Apache-2.0
"""The linear classifier on top of every family."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models.base import ModelConfig
from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.init import Initializer


def classifier(
    cfg: ModelConfig, kernel_init: Initializer, name: str = "head"
) -> Callable[[jax.Array], Any]:
    """Create the head [E, K], in float32: K-way logits are cheap, and the loss wants their digits.

    `kernel_init` applies unless `cfg.zero_head` is set. Without classes it returns None.
    """
    if not cfg.num_classes:
        return lambda features: None
    return Dense(
        cfg.num_classes,
        jnp.float32,
        nn.initializers.zeros if cfg.zero_head else kernel_init,
        nn.initializers.constant(cfg.head_bias),
        name=name,
    )
