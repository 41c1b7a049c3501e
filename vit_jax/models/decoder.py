# SPDX-License-Identifier: Apache-2.0
"""What self-supervision puts behind an encoder, as MAE, DINO, I-JEPA and LeJEPA do.

MAE's decoder goes from the kept tokens to the pixels of every patch, I-JEPA's predictor from them
to the tokens of others; DINO's head goes from features to scores over learned prototypes, LeJEPA's
to the vectors that it compares.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.models import base
from vit_jax.models.families.vit_config import ViTConfig, num_prefix
from vit_jax.models.layers import masking
from vit_jax.models.layers.block import (
    Block,
    BlockConfig,
    PreNormBlock,
    SelfAttention,
    stack,
)
from vit_jax.models.layers.dense import Dense, spread
from vit_jax.models.layers.init import RULES
from vit_jax.models.layers.mlp import Gelu, gelu
from vit_jax.models.layers.norm import layer_norm, normalize_groups
from vit_jax.models.layers.posemb import PosEmbed, sincos2d

# Its parameters, by the first component of their names, which are facebookresearch/mae's.
PARAMETERS = ("decoder_embed", "decoder_blocks", "decoder_norm", "decoder_pred", "mask_token")
# Those of the predictor, which are facebookresearch/ijepa's.
_PREDICTOR = ("embed", "blocks", "norm", "proj")
PREDICTOR = (*(f"predictor_{part}" for part in _PREDICTOR), "mask_token")
_SMALL = 1e-12  # the least norm that is divided by, as in PyTorch's normalize


def decoder_config(encoder: Any, dim: int, depth: int, num_heads: int) -> Any:
    """Return the config of a decoder for an encoder: its blocks, narrower, that drop nothing.

    Raises UserError: a width that its heads, or the positions, cannot share equally.
    """
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "drop_path_rate": 0.0}
    sizes = {"dim": dim, "depth": depth, "num_heads": num_heads, "mlp_dim": 4 * dim, "head_dim": 0}
    return dataclasses.replace(encoder, **sizes, **rates, layer_scale=0.0)


class Decoder(nn.Module):
    """MAE's decoder (arXiv:2111.06377 section 3): mask tokens, fixed positions, blocks, pixels."""

    cfg: ViTConfig  # of `decoder_config`

    @nn.compact
    def __call__(
        self, tokens: Float[Array, "B L E"], order: Int[Array, "B N"]
    ) -> Float[Array, "B N P"]:
        """Return the pixels of every patch, ordered (row, column, channel).

        Args:
            tokens: the encoder's, the prefix first.
            order: where each patch stands in the sequence of kept ones and then the others.
        """
        cfg, dtype, prefix = self.cfg, base.compute_dtype(self.cfg), num_prefix(self.cfg)
        rules = RULES[cfg.init]
        x = Dense(cfg.dim, dtype, rules.linear, name="decoder_embed")(tokens)
        token = self.param("mask_token", rules.token, (1, 1, cfg.dim), jnp.float32)
        x = masking.restore(x, jnp.asarray(token), order, prefix)
        # The prefix has no position: zeros, as in the encoder.
        table = sincos2d(*base.patch_grid(cfg), cfg.dim, PosEmbed.SINCOS2D_MAE)
        table = jnp.pad(jnp.asarray(table)[None], ((0, 0), (prefix, 0), (0, 0)))
        x = constrain(x + spread(table, x.shape, dtype), BATCH_AXES)
        fields: dict[str, Any] = {"cfg": BlockConfig.of(cfg), "train": False}
        blocks = stack(Block, cfg, name="decoder_blocks", depth=cfg.depth, **fields)
        x, _ = blocks(x, jnp.zeros(cfg.depth))
        x = layer_norm(cfg.norm_eps, dtype, "decoder_norm")(x)[:, prefix:]
        rows, columns = base.pair(cfg.patch, "patch")
        outputs = rows * columns * cfg.channels
        return Dense(outputs, jnp.float32, rules.linear, name="decoder_pred")(x)


class Predictor(nn.Module):
    """I-JEPA's predictor (arXiv:2301.08243 section 3): narrower blocks between two linear layers.

    It sees the encoded patches of the context, and for each patch that it predicts a learned token
    with that patch's fixed position. Each block of targets is predicted by itself.
    """

    cfg: ViTConfig  # of `decoder_config`
    width: int  # D, the encoder's

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "B K D"],
        kept: Int[Array, "B K"],
        targets: Int[Array, "B M T"],
        real: Bool[Array, "B T"],
    ) -> Float[Array, "B M T D"]:
        """Return what it predicts of the targets, in float32.

        Args:
            tokens: of the context, as the encoder returns them.
            kept: the patches that they are.
            targets: the patches of M blocks.
            real: False where a place of the blocks only fills the buffer; no token sees it.
        """
        cfg, dtype, linear = self.cfg, base.compute_dtype(self.cfg), RULES[self.cfg.init].linear
        (batch, blocks, count), context = targets.shape, kept.shape[1]
        table = jnp.asarray(sincos2d(*base.patch_grid(cfg), cfg.dim, PosEmbed.SINCOS2D_MAE), dtype)
        x = Dense(cfg.dim, dtype, linear, name="predictor_embed")(tokens) + table[kept]
        token = self.param("mask_token", RULES[cfg.init].token, (1, 1, cfg.dim), jnp.float32)
        wanted = table[targets.reshape(batch, -1)]
        wanted = wanted + spread(jnp.asarray(token), wanted.shape, dtype)
        shape = (batch, blocks, context, cfg.dim)
        x = [jnp.broadcast_to(x[:, None], shape), wanted.reshape(batch, blocks, count, cfg.dim)]
        # The blocks of an image lie side by side: none moves to another device.
        x = jnp.concatenate(x, axis=2).reshape(batch * blocks, context + count, cfg.dim)
        x = constrain(x, BATCH_AXES)
        seen = jnp.pad(real, ((0, 0), (context, 0)), constant_values=True)
        bias = jnp.where(jnp.repeat(seen, blocks, axis=0), 0.0, _UNSEEN)[None, :, None, None]
        fields: dict[str, Any] = {"cfg": BlockConfig.of(cfg), "train": False}
        stacked = stack(_MaskedBlock, cfg, name="predictor_blocks", depth=cfg.depth, **fields)
        bias = jnp.broadcast_to(bias, (cfg.depth, *bias.shape[1:]))
        x, _ = stacked(x, (jnp.zeros(cfg.depth), bias))
        x = layer_norm(cfg.norm_eps, dtype, "predictor_norm")(x)[:, context:]
        x = Dense(self.width, jnp.float32, linear, name="predictor_proj")(x)
        return x.reshape(batch, blocks, count, self.width)


_UNSEEN = -1e9  # what is added to the logit of a token that none may see


class _MaskedAttention(SelfAttention):
    """Self-attention whose logits a bias is added to."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], bias: Float[Array, "B 1 1 N"]
    ) -> Float[Array, "B N D"]:
        return self._attend(*self._heads(x), x.shape[-1], bias)


class _MaskedBlock(PreNormBlock):
    """The block of the ViT, of which some tokens are seen by none."""

    @nn.compact
    def __call__(
        self, x: Float[Array, "B N D"], each: tuple[Float[Array, ""], Float[Array, "B 1 1 N"]]
    ) -> tuple[Float[Array, "B N D"], None]:
        """Take the rate of stochastic depth and the bias of attention's logits."""
        (rate, bias), flat = each, x.reshape(-1, x.shape[-1])
        y = self.cfg.make_norm("norm1")(flat).reshape(x.shape)
        y = _MaskedAttention(self.cfg, self.train, name="attn")(y, bias)
        flat = flat + self._branch(y, rate, "ls1").reshape(flat.shape)
        return constrain(self._add_mlp(flat.reshape(x.shape), rate), BATCH_AXES), None


class Projector(nn.Module):
    """LeJEPA's projector: two hidden layers with BatchNorm and ReLU, and a linear one.

    It is of use in training alone, so BatchNorm has no statistics but those of the batch, which
    under `jit` is the global one.

    Attributes:
        hidden_dim: of both hidden layers.
        dim: K.
        dtype: of the computation; the output is float32.
    """

    hidden_dim: int
    dim: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "rows D"]) -> Float[Array, "rows K"]:
        for layer in (1, 2):
            x = Dense(self.hidden_dim, self.dtype, _torch_linear, name=f"fc{layer}")(x)
            x = nn.relu(_OfBatch(self.dtype, name=f"norm{layer}")(x))
        return Dense(self.dim, jnp.float32, _torch_linear, name="fc3")(x)


class _OfBatch(nn.Module):
    """Normalise every channel over the rows; scale and bias."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "rows C"]) -> Float[Array, "rows C"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        arrays = jnp.asarray(scale), jnp.asarray(bias)
        return normalize_groups(x[None], *arrays, 1, 1e-5, self.dtype)[0][0]


class ProjectionHead(nn.Module):
    """DINO's head (arXiv:2104.14294 section 3.1): an MLP, L2 normalisation, prototypes.

    Attributes:
        hidden_dim, bottleneck_dim: of the MLP's layers, and of its output.
        num_layers: of the MLP.
        num_prototypes: K.
        unit_prototypes: divide each prototype by its norm, as DINO's weight normalisation with its
            scale held at 1.
        dtype: of the computation; logits are float32.
    """

    hidden_dim: int
    bottleneck_dim: int
    num_layers: int
    num_prototypes: int
    unit_prototypes: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead K"]:
        normal = nn.initializers.normal(0.02)
        for layer in range(1, self.num_layers):
            x = gelu(Dense(self.hidden_dim, self.dtype, normal, name=f"fc{layer}")(x), Gelu.ERF)
        x = Dense(self.bottleneck_dim, self.dtype, normal, name=f"fc{self.num_layers}")(x)
        wide = x.astype(jnp.float32)
        norm = jnp.sqrt(jnp.square(wide).sum(axis=-1, keepdims=True) + _SMALL**2)
        start = _torch_linear if self.unit_prototypes else normal
        scores = _Prototypes(self.num_prototypes, start, self.unit_prototypes, name="prototypes")
        return scores(wide / norm)


class _Prototypes(nn.Module):
    """Dot products with K vectors, the columns of `kernel`, in float32."""

    num_prototypes: int
    kernel_init: Any
    unit: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead K"]:
        shape = (x.shape[-1], self.num_prototypes)
        kernel = jnp.asarray(self.param("kernel", self.kernel_init, shape, jnp.float32))
        if self.unit:
            kernel = kernel / jnp.sqrt(jnp.square(kernel).sum(axis=0, keepdims=True) + _SMALL**2)
        return (x.reshape(-1, shape[0]) @ kernel).reshape(*x.shape[:-1], shape[1])


def _torch_linear(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    # PyTorch's default for a linear layer, which DINO leaves as it is.
    limit = 1 / math.sqrt(shape[0])
    return jax.random.uniform(key, shape, dtype, -limit, limit)
