# SPDX-License-Identifier: Apache-2.0
"""ConViT (arXiv:2103.10697): attention that starts as a convolution and learns to leave it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.fields import value
from vit_jax.models.base import (
    DType,
    ModelConfig,
    Output,
    check_input,
    compute_dtype,
    grid,
    pair,
)
from vit_jax.models.layers.attention import AttentionImpl, attend, attention_weights, check_impl
from vit_jax.models.layers.block import Block, PreNormBlock
from vit_jax.models.layers.capture import record
from vit_jax.models.layers.dense import Dense, HeadsDense
from vit_jax.models.layers.drop_path import DropPathRule, drop_path_rates
from vit_jax.models.layers.dropout import Dropout
from vit_jax.models.layers.head import classifier
from vit_jax.models.layers.init import POS_EMBED, RULES, Init, Initializer
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.patch import PatchEmbed
from vit_jax.models.layers.stack import stack
from vit_jax.models.layers.weighted import spread
from vit_jax.sharding import BATCH_AXES, constrain


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ConViTConfig(ModelConfig):
    """A ConViT; the defaults are ConViT-Ti.

    Attributes:
        patch: (rows, columns) of a patch in pixels; (P,) means square.
        depth, num_heads, mlp_dim: L, h, F.
        head_dim: d; the width D is num_heads * head_dim.
        local_up_to_layer: how many of the blocks, from the first, attend by position too (GPSA).
            The class token enters after them; where there is no block after them it never does,
            and the head sees the first patch.
        locality_strength: how sharply their initial attention centres on one neighbour a head.
        qkv_bias: have that bias, in both kinds of block.
        gelu, norm_eps: facts of the weights.
        dropout_rate: after the position embedding, the attention and both MLP layers.
        attention_dropout_rate: on the attention weights.
        drop_path_rate: stochastic depth of the last block, from 0 linearly.
        attention: which attention kernel, in both kinds of block.
        init: whose initial weights, but for those of GPSA that make it a convolution.
    """

    patch: tuple[int, ...] = (16, 16)
    depth: int = value(12, least=1)
    num_heads: int = value(4, least=1)
    head_dim: int = value(48, least=1)
    mlp_dim: int = value(768, least=1)
    local_up_to_layer: int = value(10, least=0)
    locality_strength: float = 1.0
    qkv_bias: bool = False
    gelu: Gelu = Gelu.ERF
    norm_eps: float = 1e-6
    dropout_rate: float = value(0.0, least=0, below=1)
    attention_dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)
    attention: AttentionImpl = value(AttentionImpl.AUTO, free=True)
    init: Init = Init.TIMM

    @property
    def dim(self) -> int:
        """D, the width."""
        return self.num_heads * self.head_dim


# name: (h, d)
SIZES = {
    "ti": (4, 48),
    "s": (9, 48),
    "b": (16, 48),
    "ti_plus": (4, 64),  # table 1 of the paper: Ti+, S+, B+
    "s_plus": (9, 64),
    "b_plus": (16, 64),
}
VARIANTS: dict[str, ConViTConfig] = {
    f"convit_{size}": ConViTConfig(num_heads=heads, head_dim=width, mlp_dim=4 * heads * width)
    for size, (heads, width) in SIZES.items()
}


def validate(cfg: ConViTConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    rows, columns = grid(pair(cfg.image_size, "image_size"), pair(cfg.patch, "patch"))
    if rows != columns:
        raise UserError(
            f"model.image_size={cfg.image_size} and patch={cfg.patch} make {rows} x {columns} "
            "patches; ConViT takes as many rows as columns"
        )
    half = cfg.dtype is DType.BFLOAT16
    check_impl(cfg.attention, half, cfg.head_dim, cfg.attention_dropout_rate)


def relative_positions(side: int) -> Float[Array, "N N 3"]:
    """Return (dx, dy, dx^2 + dy^2) from every query (axis 0) to every key of a side x side grid."""
    place = jnp.arange(side * side)
    y, x = ((p[None, :] - p[:, None]).astype(jnp.float32) for p in jnp.divmod(place, side))
    return jnp.stack([x, y, x * x + y * y], axis=-1)


def local_init(linear: Initializer, strength: float) -> Initializer:
    """Return the initializer of `pos_proj` [3, h]: each head attends around one offset.

    With k = floor(sqrt(h)), the first k * k heads take the k x k offsets around the query, as the
    taps of a convolution kernel; the rest start as `linear` does. All are scaled by `strength`
    (section 3 and facebookresearch/convit).
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        kernel, side = linear(key, shape, dtype), math.isqrt(shape[1])
        centre = (side - 1) / 2 if side % 2 == 0 else side // 2
        tap = jnp.arange(side * side)
        x, y = (2 * (t - centre) for t in jnp.divmod(tap, side))
        local = jnp.stack([x, y, jnp.full(x.shape, -1.0)]).astype(dtype)
        return strength * jnp.concatenate([local, kernel[:, side * side :]], axis=1)

    return init


def _identity(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jnp.eye(*shape, dtype=dtype)


class GatedPositionalAttention(nn.Module):
    """Self-attention mixed per head with attention by relative position alone (section 3, GPSA).

    The columns of the qk kernel [D, 2D] are ordered (head, {q,k}, d).
    """

    num_heads: int
    init_rules: Init
    dtype: Any
    qkv_bias: bool
    locality_strength: float
    dropout_rate: float
    train: bool
    impl: AttentionImpl = AttentionImpl.AUTO

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        batch, tokens, dim = x.shape
        rules, head_dim = RULES[self.init_rules], dim // self.num_heads
        fields = {"use_bias": self.qkv_bias, "num_heads": self.num_heads, "parts": 2}
        q, k = HeadsDense(2 * dim, self.dtype, rules.qkv(2), name="qk", **fields)(x)
        v = Dense(dim, self.dtype, _identity, use_bias=self.qkv_bias, name="v")(x)
        v = v.reshape(batch, tokens, self.num_heads, head_dim).swapaxes(1, 2)
        position = self._by_position(tokens, rules.linear)
        gate = self.param("gating_param", nn.initializers.ones, (self.num_heads,), jnp.float32)
        gate = jax.nn.sigmoid(gate)[:, None, None]
        record(self, "position", lambda: position)
        record(self, "content", lambda: attention_weights(q, k))
        record(self, "weights", lambda: mixed(attention_weights(q, k), position, gate, self.dtype))
        dropping = self.train and self.dropout_rate > 0
        if self._apart() and not dropping:
            out = (1 - gate)[None] * attend(q, k, v, impl=self.impl)
            out = (out + values_by_position(gate * position, v)).astype(self.dtype)
        else:
            weights = mixed(attention_weights(q, k), position, gate, self.dtype)
            weights = Dropout(self.dropout_rate, deterministic=not dropping)(weights)
            out = jnp.matmul(weights, v)
        out = out.swapaxes(1, 2).reshape(batch, tokens, dim)
        return Dense(dim, self.dtype, rules.linear, name="proj")(out)

    def _by_position(self, tokens: int, linear: Initializer) -> Float[Array, "h N N"]:
        """Return the attention weights that depend on no image, in float32."""
        init = local_init(linear, self.locality_strength)
        dense = Dense(self.num_heads, jnp.float32, init, name="pos_proj")
        logits = dense(relative_positions(math.isqrt(tokens))).transpose(2, 0, 1)
        return jax.nn.softmax(logits, axis=-1)

    def _apart(self) -> bool:
        """Say whether content and position weigh the values apart: in half precision.

        With a flash kernel no image then has an [N, N] array of its own. In float32, which has no
        such kernel, a second product costs what one array saves.
        """
        if self.impl is AttentionImpl.AUTO:
            return self.dtype != jnp.float32
        return self.impl is not AttentionImpl.XLA


def mixed(
    content: Float[Array, "B h N N"],
    position: Float[Array, "h N N"],
    gate: Float[Array, "h 1 1"],
    dtype: Any,
) -> Float[Array, "B h N N"]:
    """Return GPSA's weights. The authors divide them by their sum, which is 1."""
    return ((1 - gate)[None] * content + (gate * position)[None]).astype(dtype)


def values_by_position(
    weights: Float[Array, "h N N"], v: Float[Array, "B h N d"]
) -> Float[Array, "B h N d"]:
    """Return weights v in float32, by one matmul a head for all images."""
    batch, heads, tokens, head_dim = v.shape
    side_by_side = v.transpose(1, 2, 0, 3).reshape(heads, tokens, batch * head_dim)
    out = jnp.matmul(weights.astype(v.dtype), side_by_side, preferred_element_type=jnp.float32)
    return out.reshape(heads, tokens, batch, head_dim).transpose(2, 0, 1, 3)


class LocalBlock(PreNormBlock):
    """A block with GPSA."""

    locality_strength: float
    attention: AttentionImpl

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return GatedPositionalAttention(
            num_heads=self.num_heads,
            init_rules=self.init_rules,
            dtype=self.dtype,
            qkv_bias=self.qkv_bias,
            locality_strength=self.locality_strength,
            dropout_rate=self.attention_dropout_rate,
            train=self.train,
            impl=self.attention,
            name="attn",
        )(y)


class ConViT(nn.Module):
    """ConViT over [B, H, W, C] images, already normalised."""

    cfg: ConViTConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype, rules = self.cfg, compute_dtype(self.cfg), RULES[self.cfg.init]
        check_input(image, pair(cfg.image_size, "image_size"), cfg.channels)
        patch = pair(cfg.patch, "patch")
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed")(image)
        table = self.param("pos_embed", POS_EMBED, (1, *x.shape[1:]), jnp.float32)
        x = x + spread(jnp.asarray(table), x.shape, dtype)
        x = constrain(Dropout(cfg.dropout_rate, deterministic=not train)(x), BATCH_AXES)
        # Held, as in the published weights, even where no block is left to read it.
        token = self.param("cls_token", rules.token, (1, 1, cfg.dim), jnp.float32)
        num_local = min(cfg.local_up_to_layer, cfg.depth)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, DropPathRule.LINEAR)
        if num_local:
            x, _ = self._local_blocks(num_local, dtype, train)(x, jnp.asarray(rates[:num_local]))
        if num_local < cfg.depth:
            shape = (x.shape[0], 1, cfg.dim)
            token = jnp.broadcast_to(spread(jnp.asarray(token), shape, dtype), shape)
            x = jnp.concatenate([token, x], axis=1)
            blocks = self._blocks(cfg.depth - num_local, dtype, train)
            x, _ = blocks(constrain(x, BATCH_AXES), jnp.asarray(rates[num_local:]))
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        features = x[:, 0].astype(jnp.float32)
        logits = classifier(cfg, rules.linear)(features)
        return Output(logits=logits, features=features, tokens=x)

    def _local_blocks(self, depth: int, dtype: Any, train: bool) -> nn.Module:
        return stack(
            LocalBlock,
            depth=depth,
            name="local_blocks",
            locality_strength=self.cfg.locality_strength,
            **self._shared(dtype, train),
        )

    def _blocks(self, depth: int, dtype: Any, train: bool) -> nn.Module:
        fields = {"qk_norm": False, "logit_factor": 1.0, **self._shared(dtype, train)}
        return stack(Block, depth=depth, name="blocks", **fields)

    def _shared(self, dtype: Any, train: bool) -> dict[str, Any]:
        """Return what both stacks are built with."""
        cfg = self.cfg
        return {
            "unroll": cfg.scan_unroll,
            "policy": cfg.remat,
            "num_heads": cfg.num_heads,
            "mlp_dim": cfg.mlp_dim,
            "gelu": cfg.gelu,
            "init_rules": cfg.init,
            "dtype": dtype,
            "norm_eps": cfg.norm_eps,
            "qkv_bias": cfg.qkv_bias,
            "layer_scale": 0.0,
            "dropout_rate": cfg.dropout_rate,
            "attention_dropout_rate": cfg.attention_dropout_rate,
            "attention": cfg.attention,
            "has_drop_path": cfg.drop_path_rate > 0,
            "train": train,
        }
