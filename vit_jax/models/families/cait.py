# SPDX-License-Identifier: Apache-2.0
"""CaiT (arXiv:2103.17239): deep self-attention among patches, which a class token then reads."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.models import base, facts
from vit_jax.models.base import ModelConfig, Output, record
from vit_jax.models.layers.attention import AttentionImpl, attend, attention_weights
from vit_jax.models.layers.block import BlockConfig, PreNormBlock, stack
from vit_jax.models.layers.dense import Dense, HeadsDense, classifier, spread
from vit_jax.models.layers.drop import Dropout, DropPathRule, drop_path_rates
from vit_jax.models.layers.init import RULES, Init, Initializer
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.patch import embed, prepend
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class CaiTConfig(ModelConfig):
    """A CaiT; the defaults are CaiT-XXS24. Fields not listed are as in `ViTConfig`.

    Dropout, attention dropout and stochastic depth, its rate the same in every block, act in the
    blocks among patches alone.

    Attributes:
        depth, mlp_dim: L, F of the blocks among patches.
        token_depth, token_mlp_dim: L, F of the class-attention blocks.
    """

    patch: tuple[int, ...] = (16, 16)
    dim: int = value(192, least=1)
    depth: int = value(24, least=1)
    num_heads: int = value(4, least=1)
    mlp_dim: int = value(768, least=1)
    token_depth: int = value(2, least=1)
    token_mlp_dim: int = value(768, least=1)
    qkv_bias: bool = True
    layer_scale: float = 1e-5
    gelu: Gelu = Gelu.ERF
    norm_eps: float = 1e-6
    dropout_rate: float = value(0.0, least=0, below=1)
    attention_dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)
    init: Init = Init.TIMM


def validate(cfg: CaiTConfig) -> None:
    """Raise UserError for fields that do not go together."""
    base.patch_grid(cfg)
    base.check_heads(cfg.dim, cfg.num_heads)


class HeadMix(nn.Module):
    """Linear layer over the head axis; kernel [h, h], bias [h]."""

    dtype: Any
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: Float[Array, "B h N M"]) -> Float[Array, "B h N M"]:
        batch, heads = x.shape[:2]
        kernel = self.param("kernel", self.kernel_init, (heads, heads), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (heads,), jnp.float32)
        # One copy of the kernel per example: a batched matmul leaves the heads in place, up to 3
        # times as fast as a contraction that moves them, and Remat.DOTS does not keep its output.
        shape = (batch, heads, heads)
        mix = jnp.broadcast_to(spread(jnp.asarray(kernel).T, shape, self.dtype), shape)
        y = jnp.matmul(mix, x.astype(self.dtype).reshape(batch, heads, -1))
        y = y.reshape(x.shape)
        return y + spread(jnp.asarray(bias)[None, :, None, None], y.shape, self.dtype)


class TalkingHeads(nn.Module):
    """Self-attention whose heads mix their logits and then their weights (arXiv:2003.02436).

    The columns of the qkv kernel [D, 3D] are ordered (head, {q,k,v}, d), as in `SelfAttention`.
    """

    cfg: BlockConfig
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        cfg, (batch, tokens, dim) = self.cfg, x.shape
        rules, head_dim = RULES[cfg.init], dim // cfg.num_heads
        fields = {"use_bias": cfg.qkv_bias, "num_heads": cfg.num_heads}
        q, k, v = HeadsDense(3 * dim, cfg.dtype, rules.qkv(3), name="qkv", **fields)(x)
        q = q * head_dim**-0.5
        logits = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
        logits = HeadMix(jnp.float32, rules.linear, name="proj_l")(logits)
        weights = jax.nn.softmax(logits, axis=-1)
        weights = HeadMix(cfg.dtype, rules.linear, name="proj_w")(weights)
        record(self, "weights", lambda: weights)  # mixed: may be negative, rows do not sum to 1
        weights = Dropout(cfg.attention_dropout_rate, deterministic=not self.train)(weights)
        out = jnp.matmul(weights, v).swapaxes(1, 2).reshape(batch, tokens, dim)
        return Dense(dim, cfg.dtype, rules.linear, name="proj")(out)


class ClassAttention(nn.Module):
    """Attention of the first token to all tokens, itself included (section 3)."""

    cfg: BlockConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B 1 D"]:
        cfg, (batch, _, dim) = self.cfg, x.shape
        rules = RULES[cfg.init]

        def project(tokens: jax.Array, name: str) -> jax.Array:
            dense = Dense(dim, cfg.dtype, rules.linear, use_bias=cfg.qkv_bias, name=name)
            return dense(tokens).reshape(batch, -1, cfg.num_heads, dim // cfg.num_heads)

        q, k, v = project(x[:, :1], "q"), project(x, "k"), project(x, "v")
        q, k, v = (y.swapaxes(1, 2) for y in (q, k, v))
        record(self, "weights", lambda: attention_weights(q, k))
        # A flash kernel would gain nothing for one query per image.
        out = attend(q, k, v, impl=AttentionImpl.XLA).reshape(batch, 1, dim)
        return Dense(dim, cfg.dtype, rules.linear, name="proj")(out)


class PatchBlock(PreNormBlock):
    """A block among the patches, with talking heads."""

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return TalkingHeads(self.cfg, self.train, name="attn")(y)


class TokenBlock(PreNormBlock):
    """A block that changes the first token only, by attention to all and by its own MLP."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B N D"], None]:
        token, patches = x[:, :1], x[:, 1:]
        y = layer_norm(self.cfg.norm_eps, self.cfg.dtype, "norm1")(x)
        y = ClassAttention(self.cfg, name="attn")(y)
        token = self._add_mlp(token + self._branch(y, drop_path_rate, "ls1"), drop_path_rate)
        return constrain(jnp.concatenate([token, patches], axis=1), BATCH_AXES), None


class CaiT(nn.Module):
    """CaiT over [B, H, W, C] images, already normalised."""

    cfg: CaiTConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, rules = self.cfg, RULES[self.cfg.init]
        x = embed(self, cfg, image, train)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, DropPathRule.CONSTANT)
        fields = {"cfg": BlockConfig.of(cfg), "train": train}
        blocks = stack(PatchBlock, cfg, name="blocks", depth=cfg.depth, **fields)
        x, _ = blocks(x, jnp.asarray(rates))
        token = self.param("cls_token", rules.token, (1, 1, cfg.dim), jnp.float32)
        x = constrain(prepend(jnp.asarray(token), x), BATCH_AXES)
        plain = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "drop_path_rate": 0.0}
        fields = {"cfg": BlockConfig.of(cfg, mlp_dim=cfg.token_mlp_dim, **plain), "train": False}
        blocks = stack(TokenBlock, cfg, name="token_blocks", depth=cfg.token_depth, **fields)
        x, _ = blocks(x, jnp.zeros(cfg.token_depth))
        x = layer_norm(cfg.norm_eps, base.compute_dtype(cfg), "norm")(x)
        features = x[:, 0].astype(jnp.float32)
        logits = classifier(cfg, rules.linear)(features)
        return Output(logits=logits, features=features, tokens=x)


def _attention(cfg: CaiTConfig, grid: facts.Grid) -> facts.Attention:
    # No rollout: talking heads' weights may be negative.
    blocks = facts.Heads("block", "blocks/attn/weights", "mean over all patches", slice(None))
    reading = facts.Heads("class attention", "token_blocks/attn/weights", "class token", None)
    return facts.Attention("class attention", (blocks, reading), reader=reading.weights)


def _timm(cfg: CaiTConfig) -> facts.Timm:
    args = facts.transformer_args(cfg)
    args |= facts.timm_args(cfg, init_values="layer_scale", depth_token_only="token_depth")
    args["mlp_ratio_token_only"] = facts.ratio(cfg.token_mlp_dim, cfg.dim)
    return facts.Timm("cait_xxs24_224", args, {"gelu": Gelu.ERF, "norm_eps": 1e-6})


def _timm_lacks(cfg: CaiTConfig) -> str:
    return "" if cfg.layer_scale else "model.layer_scale=0: its CaiT always has LayerScale"


FAMILY = facts.Family(
    config=CaiTConfig,
    module=CaiT,
    variants=facts.variants(CaiTConfig),
    validate=validate,
    attention=_attention,
    images=lambda cfg: facts.Images(crop=1.0),
    timm=_timm,
    timm_names=lambda cfg: facts.names("CaiT", "timm"),
    timm_lacks=_timm_lacks,
)
