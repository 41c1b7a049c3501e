# SPDX-License-Identifier: Apache-2.0
"""The decoder of a masked autoencoder: from the kept tokens to the pixels of every patch."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.models import base
from vit_jax.models.families.vit_config import ViTConfig, num_prefix
from vit_jax.models.layers import masking
from vit_jax.models.layers.block import Block, BlockConfig
from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.init import RULES
from vit_jax.models.layers.norm import layer_norm
from vit_jax.models.layers.posemb import PosEmbed, sincos2d
from vit_jax.models.layers.stack import stack
from vit_jax.models.layers.weighted import spread

# Its parameters, by the first component of their names, which are facebookresearch/mae's.
PARAMETERS = ("decoder_embed", "decoder_blocks", "decoder_norm", "decoder_pred", "mask_token")


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
