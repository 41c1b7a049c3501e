# SPDX-License-Identifier: Apache-2.0
"""From tokens to one feature vector."""

import enum
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.base import record
from vit_jax.models.layers.attention import Visible, attend, attention_weights
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
    QUERY = "query"  # the same without a layer for the query and without an MLP (AIMv2)


class MapPool(nn.Module):
    """Multi-head attention pooling (Set Transformer, arXiv:1810.00825; So400m, arXiv:2305.13035).

    A learned latent attends to all tokens; then x + mlp(norm(x)), residual from the projection.
    """

    cfg: BlockConfig

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "B N D"],
        sizes: Float[Array, "B N"] | None = None,
        seen: Visible | None = None,
    ) -> Float[Array, "B *S D"]:
        """Pool tokens; `sizes` counts the patches that each stands for (None: one).

        With `seen`, an image at a time: where its `queries` are S images' of a row, [B, S, D].
        """
        cfg, dim = self.cfg, tokens.shape[-1]
        rules, dtype = RULES[cfg.init], cfg.dtype
        q = Dense(dim, dtype, rules.linear, name="q")(_latent(self, dim))
        q = q if cfg.logit_factor == 1 else q * cfg.logit_factor
        pooled = _read(self, q, tokens, sizes, seen)
        x = pooled.reshape(-1, dim)
        y = cfg.make_norm("norm")(x)
        x = x + Mlp(cfg.mlp_dim, cfg.gelu, cfg.init, dtype, name="mlp")(y)
        return x.reshape(pooled.shape)


class QueryPool(nn.Module):
    """Attention of one learned query to all tokens, then a linear layer (AIMv2, arXiv:2411.14402).

    Keys and values have a bias where `qkv_bias` says so, the layer after them always has one.
    """

    cfg: BlockConfig

    @nn.compact
    def __call__(
        self, tokens: Float[Array, "B N D"], sizes: Float[Array, "B N"] | None = None
    ) -> Float[Array, "B D"]:
        """Pool tokens; `sizes` counts the patches that each stands for (None: one)."""
        q = _latent(self, tokens.shape[-1]).astype(self.cfg.dtype)
        return _read(self, q, tokens, sizes, None, use_bias=self.cfg.qkv_bias)


def _latent(module: nn.Module, dim: int) -> Float[Array, "1 1 D"]:
    init = module.cfg.init  # pyright: ignore[reportAttributeAccessIssue]
    rule = nn.initializers.xavier_uniform() if init is Init.JAX else RULES[init].linear
    return jnp.asarray(module.param("latent", rule, (1, 1, dim), jnp.float32))


def _read(
    module: nn.Module,
    q: Float[Array, "1 1 D"],
    tokens: Float[Array, "B N D"],
    sizes: Float[Array, "B N"] | None,
    seen: Visible | None,
    *,
    use_bias: bool = True,
) -> Float[Array, "B *S D"]:
    """Attend with a module's query to the keys of all tokens, and project the heads' values."""
    cfg: BlockConfig = module.cfg  # pyright: ignore[reportAttributeAccessIssue]
    (batch, _, dim), heads = tokens.shape, cfg.num_heads
    images = () if seen is None or seen.queries is None else seen.queries.shape[1:]
    rules, dtype = RULES[cfg.init], cfg.dtype
    kv: dict[str, Any] = {"use_bias": use_bias, "num_heads": heads, "parts": 2, "name": "kv"}
    k, v = HeadsDense(2 * dim, dtype, rules.qkv(2), **kv)(tokens)
    count = images[0] if images else 1
    q = jnp.broadcast_to(q.reshape(1, 1, heads, -1), (batch, count, heads, dim // heads))
    q, bias = q.swapaxes(1, 2), log_sizes(sizes)
    shown = bias if seen is None else seen.logits(tokens.shape[1])
    record(module, "weights", lambda: attention_weights(q, k, shown))
    x = attend(q, k, v, bias=bias, seen=seen, impl=cfg.attention)
    x = x.swapaxes(1, 2).reshape(-1, dim)
    return Dense(dim, dtype, rules.linear, name="proj")(x).reshape(batch, *images, dim)
