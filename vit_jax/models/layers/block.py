# SPDX-License-Identifier: Apache-2.0
"""The pre-norm transformer block (arXiv:2010.11929 equations 2 and 3), and the ViT's."""

from typing import Any, TypeVar

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.attention import Attention, AttentionImpl
from vit_jax.models.layers.drop_path import drop_path
from vit_jax.models.layers.dropout import Dropout
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norm import LayerScale, layer_norm
from vit_jax.sharding import BATCH_AXES, constrain

A = TypeVar("A", bound=Attention)


class PreNormBlock(nn.Module):
    """x += attn(norm(x)); x += mlp(norm(x)), each with its LayerScale and stochastic depth.

    A subclass says in `_attention` which attention that is. The residual stream is flattened to
    [B*N, D], what the matmuls take: XLA's CPU backend fuses through a reshape, and so would add up
    the gradients of all later branches once more for every matmul that takes their sum.
    """

    num_heads: int
    mlp_dim: int
    gelu: Gelu
    init_rules: Init
    dtype: Any
    norm_eps: float
    qkv_bias: bool
    layer_scale: float
    dropout_rate: float
    attention_dropout_rate: float
    has_drop_path: bool
    train: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B N D"], None]:
        flat = x.reshape(-1, x.shape[-1])
        y = layer_norm(self.norm_eps, self.dtype, "norm1")(flat)
        y = self._attention(y.reshape(x.shape))
        y = Dropout(self.dropout_rate, deterministic=not self.train)(y)
        flat = flat + self._branch(y, drop_path_rate, "ls1").reshape(flat.shape)
        x = self._add_mlp(flat.reshape(x.shape), drop_path_rate)
        return constrain(x, BATCH_AXES), None

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Attend within the normalised tokens, by a module named `attn`."""
        raise NotImplementedError

    def _add_mlp(self, x: jax.Array, drop_path_rate: jax.Array) -> jax.Array:
        flat = x.reshape(-1, x.shape[-1])
        y = layer_norm(self.norm_eps, self.dtype, "norm2")(flat)
        y = Mlp(
            self.mlp_dim,
            self.gelu,
            self.init_rules,
            self.dtype,
            self.dropout_rate,
            self.train,
            name="mlp",
        )(y)
        y = self._branch(y.reshape(x.shape), drop_path_rate, "ls2")
        return (flat + y.reshape(flat.shape)).reshape(x.shape)

    def _branch(self, y: jax.Array, drop_path_rate: jax.Array, name: str) -> jax.Array:
        if self.layer_scale:
            y = LayerScale(self.layer_scale, name=name)(y)
        if self.has_drop_path and self.train:
            y = drop_path(y, drop_path_rate, self.make_rng("dropout"))
        return y


class Block(PreNormBlock):
    """The block of the ViT."""

    qk_norm: bool
    attention: AttentionImpl
    logit_factor: float

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return self._make(Attention)(y)

    def _make(self, kind: type[A]) -> A:
        return kind(
            num_heads=self.num_heads,
            init_rules=self.init_rules,
            dtype=self.dtype,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            norm_eps=self.norm_eps,
            dropout_rate=self.attention_dropout_rate,
            impl=self.attention,
            train=self.train,
            logit_factor=self.logit_factor,
            name="attn",
        )
