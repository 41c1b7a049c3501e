# SPDX-License-Identifier: Apache-2.0
"""CaiT (arXiv:2103.17239): deep self-attention among patches, then a class token that reads them.

Sizes: table 3 of the paper; initial LayerScale as facebookresearch/deit releases them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.fields import value
from vit_jax.models.base import (
    ModelConfig,
    Output,
    check_heads,
    check_input,
    compute_dtype,
    grid,
    pair,
)
from vit_jax.models.layers.attention import AttentionImpl, attend, attention_weights
from vit_jax.models.layers.block import PreNormBlock
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
class CaiTConfig(ModelConfig):
    """A CaiT; the defaults are CaiT-XXS24.

    Attributes:
        patch: (rows, columns) of a patch in pixels; (P,) means square.
        dim, num_heads: D, h.
        depth, mlp_dim: L, F of the blocks among patches.
        token_depth, token_mlp_dim: L, F of the class-attention blocks.
        qkv_bias: have that bias, in both kinds of block.
        layer_scale: initial LayerScale, in both kinds of block; 0 for none.
        gelu, norm_eps: facts of the weights.
        dropout_rate: after the position embedding, the attention and both MLP layers; not in the
            class-attention blocks.
        attention_dropout_rate: on the attention weights, likewise.
        drop_path_rate: stochastic depth, the same in every block among patches, none in the others.
        init: whose initial weights.
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


# name: (D, L, h, initial LayerScale, side of the image of the published network)
SIZES = {
    "xxs24": (192, 24, 4, 1e-5, 224),
    "xxs36": (192, 36, 4, 1e-5, 224),
    "xs24": (288, 24, 6, 1e-5, 384),
    "xs36": (288, 36, 6, 1e-6, 224),  # in the paper only, as are s48 and m24
    "s24": (384, 24, 8, 1e-5, 224),
    "s36": (384, 36, 8, 1e-6, 384),
    "s48": (384, 48, 8, 1e-6, 224),
    "m24": (768, 24, 16, 1e-5, 224),
    "m36": (768, 36, 16, 1e-6, 384),
    "m48": (768, 48, 16, 1e-6, 448),
}
VARIANTS: dict[str, CaiTConfig] = {
    f"cait_{size}": CaiTConfig(
        dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_dim=4 * dim,
        token_mlp_dim=4 * dim,
        layer_scale=layer_scale,
        image_size=(side, side),
    )
    for size, (dim, depth, heads, layer_scale, side) in SIZES.items()
}


def validate(cfg: CaiTConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    grid(pair(cfg.image_size, "image_size"), pair(cfg.patch, "patch"))
    check_heads(cfg.dim, cfg.num_heads)


class HeadMix(nn.Module):
    """Linear layer over the head axis; kernel [h, h], bias [h]."""

    dtype: Any
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: Float[Array, "B h N M"]) -> Float[Array, "B h N M"]:
        batch, heads = x.shape[:2]
        kernel = self.param("kernel", self.kernel_init, (heads, heads), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (heads,), jnp.float32)
        # One copy of the kernel an example: a batched matmul leaves the heads where they are, up to
        # three times as fast as a contraction that moves them, and Remat.DOTS does not keep it.
        shape = (batch, heads, heads)
        mix = jnp.broadcast_to(spread(jnp.asarray(kernel).T, shape, self.dtype), shape)
        y = jnp.matmul(mix, x.astype(self.dtype).reshape(batch, heads, -1))
        y = y.reshape(x.shape)
        return y + spread(jnp.asarray(bias)[None, :, None, None], y.shape, self.dtype)


class TalkingHeads(nn.Module):
    """Self-attention whose heads mix their logits and then their weights (arXiv:2003.02436).

    The columns of the qkv kernel [D, 3D] are ordered (head, {q,k,v}, d), as in Attention.
    """

    num_heads: int
    init_rules: Init
    dtype: Any
    qkv_bias: bool
    dropout_rate: float
    train: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        batch, tokens, dim = x.shape
        rules, head_dim = RULES[self.init_rules], dim // self.num_heads
        q, k, v = HeadsDense(
            3 * dim,
            self.dtype,
            rules.qkv(3),
            use_bias=self.qkv_bias,
            num_heads=self.num_heads,
            name="qkv",
        )(x)
        q = q * head_dim**-0.5
        logits = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
        logits = HeadMix(jnp.float32, rules.linear, name="proj_l")(logits)
        weights = jax.nn.softmax(logits, axis=-1)
        weights = HeadMix(self.dtype, rules.linear, name="proj_w")(weights)
        record(self, "weights", lambda: weights)  # mixed: some below 0, the sum of a row is not 1
        weights = Dropout(self.dropout_rate, deterministic=not self.train)(weights)
        out = jnp.matmul(weights, v).swapaxes(1, 2).reshape(batch, tokens, dim)
        return Dense(dim, self.dtype, rules.linear, name="proj")(out)


class ClassAttention(nn.Module):
    """Attention of the first token to all tokens, itself included (section 3)."""

    num_heads: int
    init_rules: Init
    dtype: Any
    qkv_bias: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B 1 D"]:
        batch, _, dim = x.shape
        rules = RULES[self.init_rules]

        def project(tokens: jax.Array, name: str) -> jax.Array:
            dense = Dense(dim, self.dtype, rules.linear, use_bias=self.qkv_bias, name=name)
            return dense(tokens).reshape(batch, -1, self.num_heads, dim // self.num_heads)

        q, k, v = project(x[:, :1], "q"), project(x, "k"), project(x, "v")
        # One query an image: no flash kernel would gain anything.
        q, k, v = (y.swapaxes(1, 2) for y in (q, k, v))
        record(self, "weights", lambda: attention_weights(q, k))
        out = attend(q, k, v, impl=AttentionImpl.XLA).reshape(batch, 1, dim)
        return Dense(dim, self.dtype, rules.linear, name="proj")(out)


class PatchBlock(PreNormBlock):
    """A block among the patches, with talking heads."""

    def _attention(self, y: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return TalkingHeads(
            num_heads=self.num_heads,
            init_rules=self.init_rules,
            dtype=self.dtype,
            qkv_bias=self.qkv_bias,
            dropout_rate=self.attention_dropout_rate,
            train=self.train,
            name="attn",
        )(y)


class TokenBlock(PreNormBlock):
    """A block that changes the first token only, by attention to all and by its own MLP."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], drop_path_rate: Float[Array, ""]
    ) -> tuple[Float[Array, "B N D"], None]:
        token, patches = x[:, :1], x[:, 1:]
        y = layer_norm(self.norm_eps, self.dtype, "norm1")(x)
        y = ClassAttention(self.num_heads, self.init_rules, self.dtype, self.qkv_bias, name="attn")(
            y
        )
        token = token + self._branch(y, drop_path_rate, "ls1")
        token = self._add_mlp(token, drop_path_rate)
        return constrain(jnp.concatenate([token, patches], axis=1), BATCH_AXES), None


class CaiT(nn.Module):
    """CaiT over [B, H, W, C] images, already normalised."""

    cfg: CaiTConfig

    @nn.compact
    def __call__(self, image: Float[Array, "B H W C"], *, train: bool = False) -> Output:
        cfg, dtype, rules = self.cfg, compute_dtype(self.cfg), RULES[self.cfg.init]
        check_input(image, pair(cfg.image_size, "image_size"), cfg.channels)
        patch = pair(cfg.patch, "patch")
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed")(image)
        table = self.param("pos_embed", POS_EMBED, (1, *x.shape[1:]), jnp.float32)
        x = x + spread(jnp.asarray(table), x.shape, dtype)
        x = Dropout(cfg.dropout_rate, deterministic=not train)(x)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, DropPathRule.CONSTANT)
        x, _ = self._patch_blocks(dtype, train)(constrain(x, BATCH_AXES), jnp.asarray(rates))
        token = self.param("cls_token", rules.token, (1, 1, cfg.dim), jnp.float32)
        shape = (x.shape[0], 1, cfg.dim)
        token = jnp.broadcast_to(spread(jnp.asarray(token), shape, dtype), shape)
        x = jnp.concatenate([token, x], axis=1)
        x, _ = self._token_blocks(dtype)(constrain(x, BATCH_AXES), jnp.zeros(cfg.token_depth))
        x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
        features = x[:, 0].astype(jnp.float32)
        logits = classifier(cfg, rules.linear)(features)
        return Output(logits=logits, features=features, tokens=x)

    def _patch_blocks(self, dtype: Any, train: bool) -> nn.Module:
        cfg = self.cfg
        return stack(
            PatchBlock,
            depth=cfg.depth,
            name="blocks",
            mlp_dim=cfg.mlp_dim,
            dropout_rate=cfg.dropout_rate,
            attention_dropout_rate=cfg.attention_dropout_rate,
            has_drop_path=cfg.drop_path_rate > 0,
            train=train,
            **self._shared(dtype),
        )

    def _token_blocks(self, dtype: Any) -> nn.Module:
        cfg = self.cfg
        return stack(
            TokenBlock,
            depth=cfg.token_depth,
            name="token_blocks",
            mlp_dim=cfg.token_mlp_dim,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
            has_drop_path=False,
            train=False,
            **self._shared(dtype),
        )

    def _shared(self, dtype: Any) -> dict[str, Any]:
        """Return what both stacks are built with."""
        cfg = self.cfg
        return {
            "unroll": cfg.scan_unroll,
            "policy": cfg.remat,
            "num_heads": cfg.num_heads,
            "gelu": cfg.gelu,
            "init_rules": cfg.init,
            "dtype": dtype,
            "norm_eps": cfg.norm_eps,
            "qkv_bias": cfg.qkv_bias,
            "layer_scale": cfg.layer_scale,
        }
