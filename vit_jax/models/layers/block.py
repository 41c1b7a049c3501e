# SPDX-License-Identifier: Apache-2.0
"""The pre-norm transformer block (arXiv:2010.11929 equations 2 and 3), and a stack of equal blocks.

A stack is looped or unrolled; its parameters have one leading depth axis. That is one layout for
checkpoints, import and sharding; `scan_unroll` trades compile time for step speed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain, splits_parameters
from vit_jax.models.base import CAPTURED, ModelConfig, Remat, compute_dtype, record
from vit_jax.models.layers.attention import (
    AttentionImpl,
    Visible,
    attend,
    attention_weights,
    causal_logits,
)
from vit_jax.models.layers.dense import Dense, HeadsDense, spread
from vit_jax.models.layers.drop import Dropout, drop_path
from vit_jax.models.layers.init import RULES, Init
from vit_jax.models.layers.mlp import Gelu, Mlp, MlpKind
from vit_jax.models.layers.norm import LayerScale, TokenNorm, token_norm
from vit_jax.models.layers.posemb import relative_logits
from vit_jax.models.layers.rope import Rotation, turn
from vit_jax.models.mup import logit_factor

# DOTS keeps the products with weights, which have no batch dimension, unlike attention's own.
_POLICIES = {
    Remat.DOTS: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    Remat.FULL: jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """The settings that all blocks of a stack share, under the names of the models' configs.

    Attributes:
        dtype: of the computation, a jnp dtype.
        head_dim: d; 0 is the width over the number of heads.
        drop_path_rate: above 0, blocks use the rate that they are called with, not this number.
        logit_factor: multiplies attention's logits besides d**-0.5: see vit_jax/models/mup.py.
        rotation: turns queries and keys by the places of their tokens.
        relative: attention has keys for the distances of tokens, too (`posemb.relative_logits`).
        causal: a token attends to itself and those before it.
    """

    num_heads: int
    mlp_dim: int
    gelu: Gelu
    init: Init
    dtype: Any
    norm_eps: float
    qkv_bias: bool
    key_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    head_dim: int = 0
    norm: TokenNorm = TokenNorm.LAYER
    mlp: MlpKind = MlpKind.GELU
    mlp_norm: bool = False
    layer_scale: float = 0.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    attention: AttentionImpl = AttentionImpl.AUTO
    logit_factor: float = 1.0
    rotation: Rotation | None = None
    relative: bool = False
    causal: bool = False

    @classmethod
    def of(cls, model: ModelConfig, **changes: Any) -> "BlockConfig":
        """Copy the fields that a model's config has; `changes` override them."""
        names = [field.name for field in dataclasses.fields(cls) if hasattr(model, field.name)]
        derived = {"dtype": compute_dtype(model), "logit_factor": logit_factor(model)}
        return cls(**{**{name: getattr(model, name) for name in names}, **derived, **changes})

    def heads_width(self, dim: int) -> int:
        """Return h * d, the width of all heads together, within a network of width D."""
        return self.num_heads * self.head_dim or dim

    def make_norm(self, name: str) -> nn.Module:
        """Create a norm over the width."""
        return token_norm(self.norm, self.norm_eps, self.dtype, name)


class SelfAttention(nn.Module):
    """Self-attention. The columns of the qkv kernel [D, 3hd] are ordered (head, {q,k,v}, d).

    Head-major columns let tensor parallelism split whole heads; importers permute PyTorch's
    ({q,k,v}, head, d) once.
    """

    cfg: BlockConfig
    train: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], seen: Visible | None = None
    ) -> Float[Array, "B N D"]:
        q, k, v = self._heads(x)
        bias = relative_logits(self, q) if self.cfg.relative else None
        bias = causal_logits(x.shape[1]) if self.cfg.causal else bias
        shown = bias if seen is None else seen.logits(x.shape[1])
        record(self, "weights", lambda: attention_weights(q, k, shown))
        return self._project(self._mix(q, k, v, bias, seen), x.shape[-1])

    def _heads(self, x: Float[Array, "B N D"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Project to q, k and v, each [B, h, N, d]."""
        cfg = self.cfg
        q, k, v = HeadsDense(
            3 * cfg.heads_width(x.shape[-1]),
            cfg.dtype,
            RULES[cfg.init].qkv(3),
            use_bias=cfg.qkv_bias,
            unbiased=() if cfg.key_bias else (1,),
            num_heads=cfg.num_heads,
            name="qkv",
        )(x)
        if cfg.qk_norm:
            q, k = cfg.make_norm("q_norm")(q), cfg.make_norm("k_norm")(k)
        if cfg.rotation is not None:
            q, k = turn(self, cfg.rotation, q, k)
        return (q if cfg.logit_factor == 1 else q * cfg.logit_factor), k, v

    def _attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, dim: int, bias: jax.Array | None = None
    ) -> Float[Array, "B N D"]:
        """Attend, and project the heads' concatenated outputs to the width `dim`."""
        return self._project(self._mix(q, k, v, bias), dim)

    def _mix(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        bias: jax.Array | None = None,
        seen: Visible | None = None,
    ) -> Float[Array, "B h N d"]:
        cfg = self.cfg
        dropping = self.train and cfg.attention_dropout_rate > 0
        return attend(
            q,
            k,
            v,
            bias=bias,
            seen=seen,
            impl=cfg.attention,
            dropout_rate=cfg.attention_dropout_rate,
            dropout_key=self.make_rng("dropout") if dropping else None,
        )

    def _project(self, x: Float[Array, "B h N d"], dim: int) -> Float[Array, "B N D"]:
        (batch, heads, tokens, head_dim), cfg = x.shape, self.cfg
        x = x.swapaxes(1, 2).reshape(batch, tokens, heads * head_dim)
        linear = RULES[cfg.init].linear
        return Dense(dim, cfg.dtype, linear, use_bias=cfg.proj_bias, name="proj")(x)


class PreNormBlock(nn.Module):
    """x += attn(norm(x)); x += mlp(norm(x)), each with its LayerScale and stochastic depth.

    A subclass defines the attention in `_attention`. The residual stream is flattened to [B*N, D],
    the matmuls' operand: XLA's CPU backend fuses through a reshape, and would add up the gradients
    of all later branches once more for every matmul that reads their sum.
    """

    cfg: BlockConfig
    train: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B N D"], None]:
        return self._passed(x, drop_path_rate, self._attention)

    def _passed(
        self,
        x: jax.Array,
        drop_path_rate: jax.Array,
        attention: Callable[[jax.Array], jax.Array],
    ) -> tuple[Float[Array, "B N D"], None]:
        """Compute the block around an attention within the normalised tokens."""
        cfg, flat = self.cfg, x.reshape(-1, x.shape[-1])
        y = cfg.make_norm("norm1")(flat)
        y = attention(y.reshape(x.shape))
        y = Dropout(cfg.dropout_rate, deterministic=not self.train)(y)
        flat = flat + self._branch(y, drop_path_rate, "ls1").reshape(flat.shape)
        x = self._add_mlp(flat.reshape(x.shape), drop_path_rate)
        return constrain(x, BATCH_AXES), None

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Attend within the normalised tokens, by a module named `attn`."""
        raise NotImplementedError

    def _add_mlp(self, x: jax.Array, drop_path_rate: jax.Array) -> jax.Array:
        cfg, flat = self.cfg, x.reshape(-1, x.shape[-1])
        y = cfg.make_norm("norm2")(flat)
        sizes = (cfg.mlp_dim, cfg.gelu, cfg.init, cfg.dtype, cfg.dropout_rate, self.train)
        norm = cfg.make_norm if cfg.mlp_norm else None
        y = Mlp(*sizes, cfg.mlp, norm, cfg.mlp_bias, name="mlp")(y)
        y = self._branch(y.reshape(x.shape), drop_path_rate, "ls2")
        return (flat + y.reshape(flat.shape)).reshape(x.shape)

    def _branch(self, y: jax.Array, drop_path_rate: jax.Array, name: str) -> jax.Array:
        if self.cfg.layer_scale:
            y = LayerScale(self.cfg.layer_scale, name=name)(y)
        if self.cfg.drop_path_rate > 0 and self.train:
            y = drop_path(y, drop_path_rate, self.make_rng("dropout"))
        return y


class Block(PreNormBlock):
    """The block of the ViT."""

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return SelfAttention(self.cfg, self.train, name="attn")(y)


class MaskedBlock(Block):
    """The block of a ViT whose rows hold images of different sizes."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], each: tuple[Float[Array, ""], Visible]
    ) -> tuple[Float[Array, "B N D"], None]:
        """Take the rate of stochastic depth and which tokens are seen."""
        rate, seen = each
        attend_within = SelfAttention(self.cfg, self.train, name="attn")
        return self._passed(x, rate, lambda y: attend_within(y, seen))


class PlacedBlock(Block):
    """The block of a ViT that adds positions before each."""

    def __call__(
        self, x: Float[Array, "B N D"], each: tuple[Float[Array, ""], Float[Array, "N D"]]
    ) -> tuple[Float[Array, "B N D"], None]:
        """Take the rate of stochastic depth and the table of this block."""
        rate, table = each
        return super().__call__(x + spread(table, x.shape, x.dtype), rate)


def remat(block: type[nn.Module], policy: Remat, *, prevent_cse: bool = True) -> type[nn.Module]:
    """Return the block that keeps only what `policy` names for its backward pass.

    `prevent_cse` keeps XLA from merging recomputed values with the first ones; a rolled scan does
    so by itself. Unrolled blocks that keep everything keep only their shards of the weights: XLA
    would hold the gathered weights of all blocks until the backward pass.
    """
    if policy is Remat.NONE:
        if not (prevent_cse and splits_parameters()):
            return block
        return nn.remat(block, policy=jax.checkpoint_policies.everything_saveable)
    return nn.remat(block, policy=_POLICIES[policy], prevent_cse=prevent_cse)


def stack(
    block: type[nn.Module], model: ModelConfig, /, *, name: str, depth: int, **fields: Any
) -> nn.Module:
    """Create `depth` blocks as one module.

    A block maps (x, per-layer input) to (x, None); the stack takes (x, inputs stacked over depth).
    Each loop iteration runs `model.scan_unroll` blocks; 0 unrolls all, or one with remat: unrolled,
    XLA computes the weights' gradients of all blocks together at the end and holds their operands
    until then (1.3 times the loop's memory).
    """
    unroll = model.scan_unroll or (depth if model.remat is Remat.NONE else 1)
    scanned = nn.scan(
        remat(block, model.remat, prevent_cse=unroll >= depth),
        variable_axes={"params": 0, CAPTURED: 0},
        split_rngs={"params": True, "dropout": True},
        length=depth,
        unroll=min(unroll, depth),
    )
    return scanned(name=name, **fields)
