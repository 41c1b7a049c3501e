# SPDX-License-Identifier: Apache-2.0
"""From tokens to one feature vector."""

import enum
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.attention import AttentionImpl, attend, attention_weights
from vit_jax.models.layers.capture import record
from vit_jax.models.layers.dense import Dense, HeadsDense
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.merge import log_sizes
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norm import layer_norm


class Pool(enum.StrEnum):
    """Which vector the head sees."""

    CLS = "cls"  # the class token
    GAP = "gap"  # the mean over the patches (prefix tokens excluded)
    MAP = "map"  # multi-head attention pooling of the patches with one learned query


class MapPool(nn.Module):
    """Multi-head attention pooling (Set Transformer, arXiv:1810.00825; So400m, arXiv:2305.13035).

    A learned latent attends to all tokens; then x + mlp(norm(x)), residual from the projection.
    """

    num_heads: int
    mlp_dim: int
    gelu: Gelu
    init_rules: Init
    dtype: Any
    norm_eps: float = 1e-6
    impl: AttentionImpl = AttentionImpl.AUTO
    logit_factor: float = 1.0  # besides d**-0.5: see models/mup.py

    @nn.compact
    def __call__(
        self, tokens: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None = None
    ) -> Float[Array, "B D"]:
        """Pool tokens, each of which stands for one patch or as many as its size says."""
        batch, _, dim = tokens.shape
        rules, heads = RULES[self.init_rules], self.num_heads
        latent_init = (
            nn.initializers.xavier_uniform() if self.init_rules is Init.JAX else rules.linear
        )
        latent = self.param("latent", latent_init, (1, 1, dim), jnp.float32)
        q = Dense(dim, self.dtype, rules.linear, name="q")(latent)
        q = q if self.logit_factor == 1 else q * self.logit_factor
        kv = HeadsDense(2 * dim, self.dtype, rules.qkv(2), num_heads=heads, parts=2, name="kv")
        k, v = kv(tokens)
        q = jnp.broadcast_to(q.reshape(1, 1, heads, -1), (batch, 1, heads, dim // heads))
        q = q.swapaxes(1, 2)
        record(self, "weights", lambda: attention_weights(q, k))
        x = attend(q, k, v, bias=log_sizes(sizes), impl=self.impl).reshape(batch, dim)
        x = Dense(dim, self.dtype, rules.linear, name="proj")(x)
        y = layer_norm(self.norm_eps, self.dtype, "norm")(x)
        return x + Mlp(self.mlp_dim, self.gelu, self.init_rules, self.dtype, name="mlp")(y)
