# SPDX-License-Identifier: Apache-2.0
"""From tokens to one feature vector."""

import enum

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.base import record
from vit_jax.models.layers.attention import attend, attention_weights
from vit_jax.models.layers.block import BlockConfig
from vit_jax.models.layers.dense import Dense, HeadsDense
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.token_merging import log_sizes


class Pool(enum.StrEnum):
    """Which vector the head sees."""

    CLS = "cls"  # the class token
    GAP = "gap"  # the mean over the patches (prefix tokens excluded)
    MAP = "map"  # multi-head attention pooling of the patches with one learned query


class MapPool(nn.Module):
    """Multi-head attention pooling (Set Transformer, arXiv:1810.00825; So400m, arXiv:2305.13035).

    A learned latent attends to all tokens; then x + mlp(norm(x)), residual from the projection.
    """

    cfg: BlockConfig

    @nn.compact
    def __call__(
        self, tokens: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None = None
    ) -> Float[Array, "B D"]:
        """Pool tokens; `sizes` counts the patches that each stands for (None: one)."""
        cfg, (batch, _, dim) = self.cfg, tokens.shape
        rules, heads, dtype = RULES[cfg.init], cfg.num_heads, cfg.dtype
        latent_init = nn.initializers.xavier_uniform() if cfg.init is Init.JAX else rules.linear
        latent = self.param("latent", latent_init, (1, 1, dim), jnp.float32)
        q = Dense(dim, dtype, rules.linear, name="q")(latent)
        q = q if cfg.logit_factor == 1 else q * cfg.logit_factor
        k, v = HeadsDense(2 * dim, dtype, rules.qkv(2), num_heads=heads, parts=2, name="kv")(tokens)
        q = jnp.broadcast_to(q.reshape(1, 1, heads, -1), (batch, 1, heads, dim // heads))
        q = q.swapaxes(1, 2)
        record(self, "weights", lambda: attention_weights(q, k))
        x = attend(q, k, v, bias=log_sizes(sizes), impl=cfg.attention).reshape(batch, dim)
        x = Dense(dim, dtype, rules.linear, name="proj")(x)
        y = cfg.make_norm("norm")(x)
        return x + Mlp(cfg.mlp_dim, cfg.gelu, cfg.init, dtype, name="mlp")(y)
