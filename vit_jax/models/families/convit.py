# SPDX-License-Identifier: Apache-2.0
"""ConViT (arXiv:2103.10697): attention that starts as a convolution and learns to leave it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output, record
from vit_jax.models.layers.attention import AttentionImpl, attend, attention_weights, check_impl
from vit_jax.models.layers.block import Block, BlockConfig, PreNormBlock, stack
from vit_jax.models.layers.dense import Dense, HeadsDense, classifier
from vit_jax.models.layers.drop import Dropout, DropPathRule, drop_path_rates
from vit_jax.models.layers.init import RULES, Init, Initializer
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.patch import embed, prepend
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ConViTConfig(ModelConfig):
    """A ConViT; the defaults are ConViT-Ti. Fields not listed are as in `ViTConfig`.

    Attributes:
        head_dim: d; the width D is num_heads * head_dim.
        local_up_to_layer: how many blocks, from the first, attend by position too (GPSA). The class
            token enters after them; without a block after them it never enters, and the head sees
            the first patch.
        locality_strength: how sharply each head's initial attention centres on one neighbour.
        drop_path_rate: stochastic depth of the last block, from 0 linearly.
        init: the code whose rules initialise all weights except those that make GPSA a convolution.
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


def validate(cfg: ConViTConfig) -> None:
    """Raise UserError for fields that do not go together."""
    rows, columns = base.patch_grid(cfg)
    if rows != columns:
        raise UserError(
            f"model.image_size={cfg.image_size} and patch={cfg.patch} make {rows} x {columns} "
            "patches; ConViT takes as many rows as columns"
        )
    half = cfg.dtype is base.DType.BFLOAT16
    check_impl(cfg.attention, half, cfg.head_dim, cfg.attention_dropout_rate)


def relative_positions(side: int) -> Float[Array, "N N 3"]:
    """Return (dx, dy, dx^2 + dy^2) from every query (axis 0) to every key of a side x side grid."""
    index = jnp.arange(side * side)
    y, x = ((p[None, :] - p[:, None]).astype(jnp.float32) for p in jnp.divmod(index, side))
    return jnp.stack([x, y, x * x + y * y], axis=-1)


def local_init(linear: Initializer, strength: float) -> Initializer:
    """Return the initializer of `pos_proj` [3, h]: each head attends around one offset.

    With k = floor(sqrt(h)), the first k * k heads get the k x k offsets around the query, like the
    taps of a convolution kernel; the rest start as in `linear`. All are scaled by `strength`
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

    cfg: BlockConfig
    locality_strength: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        cfg, (batch, tokens, dim) = self.cfg, x.shape
        rules, heads, dtype = RULES[cfg.init], cfg.num_heads, cfg.dtype
        fields = {"use_bias": cfg.qkv_bias, "num_heads": heads, "parts": 2}
        q, k = HeadsDense(2 * dim, dtype, rules.qkv(2), name="qk", **fields)(x)
        v = Dense(dim, dtype, _identity, use_bias=cfg.qkv_bias, name="v")(x)
        v = v.reshape(batch, tokens, heads, dim // heads).swapaxes(1, 2)
        position = self._by_position(tokens, rules.linear)
        gate = self.param("gating_param", nn.initializers.ones, (heads,), jnp.float32)
        gate = jax.nn.sigmoid(gate)[:, None, None]

        def weights() -> Float[Array, "B h N N"]:
            # The authors divide them by their sum, which is 1.
            content = attention_weights(q, k)
            return ((1 - gate)[None] * content + (gate * position)[None]).astype(dtype)

        record(self, "position", lambda: position)
        record(self, "content", lambda: attention_weights(q, k))
        record(self, "weights", weights)
        dropping = self.train and cfg.attention_dropout_rate > 0
        if self._splits_products() and not dropping:
            out = (1 - gate)[None] * attend(q, k, v, impl=cfg.attention)
            out = (out + _weigh(gate * position, v)).astype(dtype)
        else:
            dropout = Dropout(cfg.attention_dropout_rate, deterministic=not dropping)
            out = jnp.matmul(dropout(weights()), v)
        out = out.swapaxes(1, 2).reshape(batch, tokens, dim)
        return Dense(dim, dtype, rules.linear, name="proj")(out)

    def _by_position(self, tokens: int, linear: Initializer) -> Float[Array, "h N N"]:
        """Return the attention weights, float32, that positions alone determine."""
        init = local_init(linear, self.locality_strength)
        dense = Dense(self.cfg.num_heads, jnp.float32, init, name="pos_proj")
        logits = dense(relative_positions(math.isqrt(tokens))).transpose(2, 0, 1)
        return jax.nn.softmax(logits, axis=-1)

    def _splits_products(self) -> bool:
        """Return whether content and position weigh the values in two products.

        With a flash kernel, in half precision, no image then needs an [N, N] array. float32 has no
        such kernel, and the second product costs what the smaller array saves.
        """
        if self.cfg.attention is AttentionImpl.AUTO:
            return self.cfg.dtype != jnp.float32
        return self.cfg.attention is not AttentionImpl.XLA


def _weigh(weights: Float[Array, "h N N"], v: Float[Array, "B h N d"]) -> Float[Array, "B h N d"]:
    """Return weights v in float32, by one matmul per head for all images."""
    batch, heads, tokens, head_dim = v.shape
    side_by_side = v.transpose(1, 2, 0, 3).reshape(heads, tokens, batch * head_dim)
    out = jnp.matmul(weights.astype(v.dtype), side_by_side, preferred_element_type=jnp.float32)
    return out.reshape(heads, tokens, batch, head_dim).transpose(2, 0, 1, 3)


class GPSABlock(PreNormBlock):
    """A block with GPSA."""

    locality_strength: float

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        gpsa = GatedPositionalAttention(self.cfg, self.locality_strength, self.train, name="attn")
        return gpsa(y)


class ConViT(nn.Module):
    """ConViT over [B, H, W, C] images, already normalised."""

    cfg: ConViTConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, rules = self.cfg, RULES[self.cfg.init]
        x = embed(self, cfg, image, train)
        # The published weights have it even where no block is left to read it.
        token = self.param("cls_token", rules.token, (1, 1, cfg.dim), jnp.float32)
        local = min(cfg.local_up_to_layer, cfg.depth)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, DropPathRule.LINEAR)
        fields = {"cfg": BlockConfig.of(cfg), "train": train}
        if local:
            own = {"locality_strength": cfg.locality_strength, **fields}
            blocks = stack(GPSABlock, cfg, name="local_blocks", depth=local, **own)
            x, _ = blocks(x, jnp.asarray(rates[:local]))
        if local < cfg.depth:
            x = constrain(prepend(jnp.asarray(token), x), BATCH_AXES)
            blocks = stack(Block, cfg, name="blocks", depth=cfg.depth - local, **fields)
            x, _ = blocks(x, jnp.asarray(rates[local:]))
        x = layer_norm(cfg.norm_eps, base.compute_dtype(cfg), "norm")(x)
        features = x[:, 0].astype(jnp.float32)
        logits = classifier(cfg, rules.linear)(features)
        return Output(logits=logits, features=features, tokens=x)


def _attention(cfg: ConViTConfig, grid: facts.Grid) -> facts.Attention:
    centre = grid[0] // 2 * grid[1] + grid[1] // 2
    path, query = "local_blocks/attn/", "centre patch"
    also = tuple((f"{query}, by {how}", path + how) for how in ("position", "content"))
    readers, gates = slice(centre, centre + 1), path + "gating_param"
    local = facts.Heads("local block", path + "weights", query, readers, also, gates)
    blocks = facts.Heads("block", "blocks/attn/weights", "class token", slice(1))
    reader = "first patch" if cfg.local_up_to_layer >= cfg.depth else "class token"
    rolled = (local.weights, blocks.weights)
    return facts.Attention(f"attention rollout of the {reader}", (local, blocks), rolled)


def _timm(cfg: ConViTConfig) -> facts.Timm:
    # timm multiplies the width by the number of heads.
    args = facts.transformer_args(cfg)
    args |= facts.timm_args(cfg, "local_up_to_layer", "locality_strength", embed_dim="head_dim")
    return facts.Timm("convit_tiny", args, {"gelu": Gelu.ERF, "norm_eps": 1e-6})


def _timm_names(cfg: ConViTConfig) -> tuple[facts.Rename, ...]:
    # timm numbers local and global blocks in one list.
    number = (r"^blocks/(\d+)/", lambda m: f"blocks/{int(m[1]) + cfg.local_up_to_layer}/")
    return (number, *facts.names("ConViT", "timm"))


FAMILY = facts.Family(
    config=ConViTConfig,
    module=ConViT,
    variants=facts.variants(ConViTConfig),
    validate=validate,
    attention=_attention,
    timm=_timm,
    timm_names=_timm_names,
)
