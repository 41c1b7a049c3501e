# SPDX-License-Identifier: Apache-2.0
"""A ViT for images of any size and shape: timm's NaFlexVit, SigLIP 2's NaFlex tower, RADIO."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.devices.sharding import BATCH_AXES, constrain
from vit_jax.errors import UserError
from vit_jax.models import base
from vit_jax.models.base import Output
from vit_jax.models.families.vit_config import ViTConfig, num_prefix
from vit_jax.models.layers import native
from vit_jax.models.layers.attention import Visible
from vit_jax.models.layers.block import Block, BlockConfig, MaskedBlock, stack
from vit_jax.models.layers.dense import Dense, classifier
from vit_jax.models.layers.drop import Dropout, drop_path_rates
from vit_jax.models.layers.init import RULES
from vit_jax.models.layers.norm import token_norm
from vit_jax.models.layers.patch import PatchEmbed
from vit_jax.models.layers.pool import MapPool, Pool


class NativeViT(nn.Module):
    """Vision Transformer over rows of patches, or over images [B, H, W, C] of one size."""

    cfg: ViTConfig

    @nn.compact
    def __call__(
        self,
        image: Float[Array, "B ..."],
        *,
        train: bool = False,
        grids: Int[Array, "B 2"] | Int[Array, "B S 2"] | None = None,
    ) -> Output:
        """Encode images, already normalised.

        Args:
            image: [B, H, W, C], whose sides the patch divides; with `grids` rows of patches
                [B, L, P*Q*C], each row by row of its pixels, the channel fastest, as timm's.
            train: drop as the config says.
            grids: the (rows, columns) of the image at each row's beginning, or of its S images;
                what is left of L is padding.

        Returns:
            logits [B, K] and features [B, E], with S images a row [B, S, K] and [B, S, E]; tokens,
            the prefix of each image and then the patches. An image of grid (0, 0) is none: what is
            returned for it means nothing.
        """
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        x = self._patches(image, grids, dtype)
        batch, length, _ = x.shape
        if grids is None:
            shape = (image.shape[1], image.shape[2])
            every = jnp.asarray([[base.patch_grid(cfg, shape)]], jnp.int32)
        else:
            every = grids if grids.ndim == 3 else grids[:, None]
        images, prefix = every.shape[1], num_prefix(cfg)
        where = native.places(every, length)
        table = native.positions(self, cfg, where)
        if table is not None:
            x = x + jnp.broadcast_to(table, x.shape).astype(dtype)
        x = self._prepended(x, images)
        seen, of_patches = (
            self._visible(every, where, prefix) if grids is not None else (None, None)
        )
        x = Dropout(cfg.dropout_rate, deterministic=not train)(x)
        if cfg.pre_norm:
            x = token_norm(cfg.norm, cfg.norm_eps, dtype, "norm_pre")(x)
        x = self._blocks(constrain(x, BATCH_AXES), seen, train)
        if cfg.final_norm and not cfg.fc_norm:
            x = token_norm(cfg.norm, cfg.norm_eps, dtype, "norm")(x)
        features = self._pool(x, every, where, of_patches, dtype).astype(jnp.float32)
        if grids is None or grids.ndim == 2:
            features = features.reshape(batch, -1)
        linear = RULES[cfg.init].linear
        if cfg.pre_logits_dim:
            lecun = nn.initializers.lecun_normal()
            dense = Dense(cfg.pre_logits_dim, jnp.float32, lecun, name="pre_logits")
            features = jnp.tanh(dense(features))
        return Output(logits=classifier(cfg, linear)(features), features=features, tokens=x)

    def _patches(
        self, image: jax.Array, grids: jax.Array | None, dtype: Any
    ) -> Float[Array, "B L D"]:
        cfg, (rows, columns) = self.cfg, base.pair(self.cfg.patch, "patch")
        values = rows * columns * cfg.channels
        if grids is None:
            if image.ndim != 4 or image.shape[-1] != cfg.channels:
                raise UserError(
                    f"the model takes images [B, H, W, {cfg.channels}], or rows of patches "
                    f"[B, L, {values}] with their grids, not {list(image.shape)}"
                )
        elif image.ndim != 3 or image.shape[-1] != values:
            raise UserError(
                f"the model takes rows of patches [B, L, {values}], not {list(image.shape)}; "
                "set model.patch and model.channels to the data's"
            )
        else:  # as images of one column, whose patches lie one below the other
            image = image.reshape(len(image), -1, columns, cfg.channels)
        fields: dict[str, Any] = {"use_bias": cfg.patch_bias}
        patch = (rows, columns)
        return PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed", **fields)(image)

    def _prepended(self, x: jax.Array, images: int) -> Float[Array, "B M D"]:
        """Put the class token and the registers of each image of a row before the patches."""
        cfg, rules = self.cfg, RULES[self.cfg.init]
        prefix = []
        if cfg.class_token:
            prefix.append(self.param("cls_token", rules.token, (1, 1, cfg.dim), jnp.float32))
        if cfg.num_registers:
            shape = (1, cfg.num_registers, cfg.dim)
            prefix.append(self.param("reg_token", rules.register, shape, jnp.float32))
        if not prefix:
            return x
        tokens = jnp.tile(jnp.concatenate(prefix, axis=1).astype(x.dtype), (1, images, 1))
        return jnp.concatenate([jnp.broadcast_to(tokens, (len(x), *tokens.shape[1:])), x], axis=1)

    def _visible(
        self, grids: jax.Array, where: native.Places, prefix: int
    ) -> tuple[Visible, Visible]:
        """Return which tokens see each other in the blocks, and which patches the pool sees."""
        batch, images = grids.shape[:2]
        if images == 1:
            lengths = grids.prod(axis=-1)[:, 0]
            return Visible(lengths + prefix), Visible(lengths)
        own = jnp.repeat(jnp.arange(images), prefix)[None]
        own = jnp.broadcast_to(own, (batch, images * prefix))
        segments = jnp.concatenate([own.astype(jnp.int32), where.segment], axis=1)
        queries = jnp.broadcast_to(jnp.arange(images)[None], (batch, images))
        return Visible(segments=segments), Visible(segments=where.segment, queries=queries)

    def _blocks(self, x: jax.Array, seen: Visible | None, train: bool) -> Float[Array, "B M D"]:
        cfg = self.cfg
        rates = jnp.asarray(drop_path_rates(cfg.drop_path_rate, cfg.depth, cfg.drop_path_rule))
        fields: dict[str, Any] = {"cfg": BlockConfig.of(cfg), "train": train, "name": "blocks"}
        if seen is None:
            return stack(Block, cfg, depth=cfg.depth, **fields)(x, rates)[0]
        each = jax.tree.map(lambda a: jnp.broadcast_to(a[None], (cfg.depth, *a.shape)), seen)
        return stack(MaskedBlock, cfg, depth=cfg.depth, **fields)(x, (rates, each))[0]

    def _pool(
        self,
        x: jax.Array,
        grids: jax.Array,
        where: native.Places,
        seen: Visible | None,
        dtype: Any,
    ) -> Float[Array, "B *S D"]:
        cfg, images = self.cfg, grids.shape[1]
        before = images * num_prefix(cfg)
        if cfg.pool is Pool.CLS:
            return x[:, :before].reshape(len(x), images, -1, x.shape[-1])[:, :, 0]
        x = x[:, before:]
        if cfg.pool is Pool.MAP:
            own = {"num_heads": cfg.pool_heads, "mlp_dim": cfg.pool_mlp_dim}
            own = {name: value for name, value in own.items() if value}
            return MapPool(BlockConfig.of(cfg, **own), name="map_pool")(x, None, seen)
        mine = where.segment[:, None] == jnp.arange(images)[None, :, None]  # [B, S, L]
        mine = jnp.broadcast_to(mine, (len(x), *mine.shape[1:])).astype(jnp.float32)
        count = jnp.maximum(mine.sum(axis=-1, keepdims=True), 1)
        exact = jax.lax.Precision.HIGHEST
        pooled = jnp.matmul(mine, x.astype(jnp.float32), precision=exact) / count
        if not cfg.fc_norm:
            return pooled
        return token_norm(cfg.norm, cfg.norm_eps, dtype, "fc_norm")(pooled)
