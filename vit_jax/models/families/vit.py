# SPDX-License-Identifier: Apache-2.0
"""Vision Transformer (arXiv:2010.11929) with the options of its successors."""

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
from vit_jax.models.layers import masking
from vit_jax.models.layers.block import Block, BlockConfig, PlacedBlock, stack
from vit_jax.models.layers.dense import Dense, classifier, spread
from vit_jax.models.layers.drop import Dropout, drop_path_rates
from vit_jax.models.layers.init import POS_EMBED, RULES, Initializer
from vit_jax.models.layers.norm import BatchNorm, token_norm
from vit_jax.models.layers.patch import PatchEmbed, prepend
from vit_jax.models.layers.pool import MapPool, Pool, QueryPool
from vit_jax.models.layers.posemb import (
    FIXED,
    PosEmbed,
    PosEmbedAt,
    crossed,
    placed,
    resample,
    sincos2d,
)
from vit_jax.models.layers.rope import Rotation
from vit_jax.models.layers.token_merging import mean, merging_stack


class ViT(nn.Module):
    """Vision Transformer over [B, H, W, C] images, already normalised."""

    cfg: ViTConfig

    @nn.compact
    def __call__(
        self,
        image: Float[Array, "B H W C"],
        *,
        train: bool = False,
        source: Int[Array, "B N"] | None = None,
        kept: Int[Array, "B K"] | None = None,
    ) -> Output:
        """Encode images; self-supervision hides patches by `source` or `kept` (layers.masking).

        Args:
            image: normalised.
            train: drop as the config says.
            source: which patch's embedding each patch has, N for the mask token.
            kept: the patches that are encoded; the others are left out.
        """
        cfg, dtype = self.cfg, base.compute_dtype(self.cfg)
        self._check_image(image)
        x, shape = self._patches(image, dtype)
        if source is not None:
            token = self.param("mask_token", RULES[cfg.init].token, (1, 1, cfg.dim), jnp.float32)
            x = masking.replace(x, jnp.asarray(token), source)
        x, tables = self._embed(x, shape, dtype)
        if train and cfg.patch_drop_rate:
            size = (len(x), x.shape[1] - num_prefix(cfg))
            kept = masking.drawn(self.make_rng("dropout"), size, cfg.patch_drop_rate)
        if kept is not None:
            if cfg.window or cfg.axial:
                raise UserError(
                    "windows need the grid of all patches: set model.window=0, axial=False"
                )
            if without := placed(cfg):
                raise UserError(
                    "an encoder of a part of the patches does not know the places of its tokens; "
                    f"set model.{without}"
                )
            x = masking.keep(x, kept, num_prefix(cfg))
        x = Dropout(cfg.dropout_rate, deterministic=not train)(x)
        if cfg.pre_norm:
            x = token_norm(cfg.norm, cfg.norm_eps, dtype, "norm_pre")(x)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, cfg.drop_path_rule)
        x = constrain(x, BATCH_AXES)
        x, sizes = self._blocks(x, shape, jnp.asarray(rates), tables, train)
        if not cfg.fc_norm:
            x = token_norm(cfg.norm, cfg.norm_eps, dtype, "norm")(x)
        linear = RULES[cfg.init].linear
        if cfg.distilled:
            return self._two_heads(x, linear)
        features = self._pool(x, sizes, dtype).astype(jnp.float32)
        if cfg.pre_logits_dim:
            lecun = nn.initializers.lecun_normal()
            dense = Dense(cfg.pre_logits_dim, jnp.float32, lecun, name="pre_logits")
            features = jnp.tanh(dense(features))
        seen = features
        if cfg.head_norm and cfg.num_classes:
            norm = BatchNorm(1e-6, jnp.float32, train, affine=False, name="head_norm")
            seen = norm(features)
        return Output(logits=classifier(cfg, linear)(seen), features=features, tokens=x)

    def _check_image(self, image: jax.Array) -> None:
        size = base.pair(self.cfg.image_size, "image_size")
        if self.cfg.dynamic_image_size:
            size = (image.shape[1], image.shape[2])
            self._grid(size)
        base.check_input(image, size, self.cfg.channels)

    def _grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (rows, columns) of patches of an image."""
        return base.patch_grid(self.cfg, image_size)

    def _patches(
        self, image: jax.Array, dtype: Any
    ) -> tuple[Float[Array, "B N D"], tuple[int, int]]:
        """Return the embedded patches and their (rows, columns)."""
        cfg, patch = self.cfg, base.pair(self.cfg.patch, "patch")
        stored = base.pair(cfg.base_patch, "base_patch") if cfg.base_patch else patch
        fields: dict[str, Any] = {"use_bias": cfg.patch_bias, "stored": stored}
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, name="patch_embed", **fields)(image)
        if cfg.patch_norm:
            x = token_norm(cfg.norm, cfg.norm_eps, dtype, "patch_norm")(x)
        return x, base.grid((image.shape[1], image.shape[2]), patch)

    def _two_heads(self, x: Float[Array, "B N D"], kernel_init: Initializer) -> Output:
        """Read the class token by `head`, the distillation token by `head_dist`."""
        first, second = x[:, 0].astype(jnp.float32), x[:, 1].astype(jnp.float32)
        logits = classifier(self.cfg, kernel_init)(first)
        dist_logits = classifier(self.cfg, kernel_init, "head_dist")(second)
        return Output(
            logits=(logits + dist_logits) / 2,
            features=(first + second) / 2,  # timm's pre-logits
            tokens=x,
            aux={"cls_logits": logits, "dist_logits": dist_logits},
        )

    def _embed(
        self, x: Float[Array, "B N D"], shape: tuple[int, int], dtype: Any
    ) -> tuple[Float[Array, "B M D"], Float[Array, "#L M D"] | None]:
        """Add positions and prepend the prefix tokens; return tables that the blocks add instead.

        A table that covers the prefix is added after it is prepended; one that does not, before.
        """
        cfg = self.cfg
        token_init = RULES[cfg.init].token
        prefix = []
        if cfg.class_token:
            prefix.append(self.param("cls_token", token_init, (1, 1, cfg.dim), jnp.float32))
        if cfg.distilled:
            prefix.append(self.param("dist_token", token_init, (1, 1, cfg.dim), jnp.float32))
        if cfg.num_registers:
            registers = (1, cfg.num_registers, cfg.dim)
            register_init = RULES[cfg.init].register
            prefix.append(self.param("reg_token", register_init, registers, jnp.float32))
        covers_prefix = cfg.pos_embed is PosEmbed.LEARNED and cfg.pos_embed_prefix
        table, count = None, cfg.depth if cfg.pos_embed_at is PosEmbedAt.LAYERS else 1
        if cfg.pos_embed is PosEmbed.LEARNED:
            own = self._grid(base.pair(cfg.image_size, "image_size"))
            if cfg.base_grid:
                own = base.pair(cfg.base_grid, "base_grid")
            covered = num_prefix(cfg) if covers_prefix else 0
            length = covered + own[0] * own[1]
            table = self.param("pos_embed", POS_EMBED, (count, length, cfg.dim), jnp.float32)
            if own != shape:
                table = resample(table, covered, own, shape, linear=bool(cfg.base_grid))
        elif cfg.pos_embed is PosEmbed.LEARNED2D:
            table = crossed(self, shape, cfg.dim, count)
        elif cfg.pos_embed in FIXED:
            table = jnp.asarray(sincos2d(*shape, cfg.dim, cfg.pos_embed))[None]
        tables = None
        if cfg.pos_embed_at is not PosEmbedAt.STEM and table is not None:
            before = 0 if covers_prefix else num_prefix(cfg)
            table, tables = None, jnp.pad(jnp.asarray(table), ((0, 0), (before, 0), (0, 0)))
        if table is not None and not covers_prefix:
            x = x + spread(jnp.asarray(table), x.shape, dtype)
        if prefix:
            x = prepend(jnp.concatenate(prefix, axis=1), x)
        if table is not None and covers_prefix:
            x = x + spread(jnp.asarray(table), x.shape, dtype)
        return x, tables

    def _blocks(
        self,
        x: jax.Array,
        grid: tuple[int, int],
        rates: jax.Array,
        tables: jax.Array | None,
        train: bool,
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N"] | None]:
        """Return the encoded tokens and how many patches each stands for (None: one each)."""
        cfg = self.cfg
        rotation = Rotation.of(cfg, grid, num_prefix(cfg))
        relative = cfg.pos_embed is PosEmbed.RELATIVE
        blocks = BlockConfig.of(cfg, rotation=rotation, relative=relative)
        fields: dict[str, Any] = {"cfg": blocks, "train": train}
        if cfg.token_merging and not self.is_initializing():  # the stack makes the parameters
            fields |= {"merged": cfg.token_merging, "num_prefix": num_prefix(cfg)}
            return merging_stack(self, x, rates, cfg.remat, fields)
        if (cfg.window or cfg.axial) and not self.is_initializing():  # likewise
            from vit_jax.models.layers.local import local_stack  # late, as in the config

            return local_stack(self, x, rates, cfg, grid, num_prefix(cfg), fields), None
        fields |= {"name": "blocks", "depth": cfg.depth}
        if tables is None:
            return stack(Block, cfg, **fields)(x, rates)
        tables = jnp.broadcast_to(tables, (cfg.depth, *tables.shape[1:]))
        return stack(PlacedBlock, cfg, **fields)(x, (rates, tables))

    def _pool(self, x: jax.Array, sizes: jax.Array | None, dtype: Any) -> Float[Array, "B D"]:
        cfg = self.cfg
        if cfg.pool is Pool.CLS:
            return x[:, 0]
        if not cfg.pool_prefix:
            x, sizes = jax.tree.map(lambda array: array[:, num_prefix(cfg) :], (x, sizes))
        if cfg.pool in (Pool.MAP, Pool.QUERY):
            own = {"num_heads": cfg.pool_heads, "mlp_dim": cfg.pool_mlp_dim}
            own = {name: value for name, value in own.items() if value}
            pool = MapPool if cfg.pool is Pool.MAP else QueryPool
            return pool(BlockConfig.of(cfg, **own), name=f"{cfg.pool}_pool")(x, sizes)
        pooled = mean(x, sizes)
        if not cfg.fc_norm:
            return pooled
        return token_norm(cfg.norm, cfg.norm_eps, dtype, "fc_norm")(pooled)
