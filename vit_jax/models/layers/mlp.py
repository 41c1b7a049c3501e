# SPDX-License-Identifier: Apache-2.0
"""The transformer's MLP and its GELUs."""

import enum
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.init import RULES, Init


class Gelu(enum.StrEnum):
    """Which GELU: a fact of the weights, not a choice of speed."""

    TANH = "tanh"  # the approximation that `nn.gelu` defaults to: Google's models
    ERF = "erf"  # exact: PyTorch's models
    QUICK = "quick"  # x * sigmoid(1.702 x): OpenAI's CLIP


def gelu(x: jax.Array, form: Gelu) -> jax.Array:
    """Apply the GELU in the given form."""
    if form is Gelu.QUICK:
        return x * jax.nn.sigmoid(1.702 * x)
    return jax.nn.gelu(x, approximate=form is Gelu.TANH)


class Mlp(nn.Module):
    """Linear, GELU, linear; dropout after each, as in google-research/vision_transformer."""

    hidden_dim: int
    gelu: Gelu
    init_rules: Init
    dtype: Any
    dropout_rate: float = 0.0
    train: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        rules, dim = RULES[self.init_rules], x.shape[-1]
        x = Dense(self.hidden_dim, self.dtype, rules.linear, rules.mlp_bias, name="fc1")(x)
        x = gelu(x, self.gelu)
        x = nn.Dropout(self.dropout_rate, deterministic=not self.train)(x)
        x = Dense(dim, self.dtype, rules.linear, rules.mlp_bias, name="fc2")(x)
        return nn.Dropout(self.dropout_rate, deterministic=not self.train)(x)
