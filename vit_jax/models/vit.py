# SPDX-License-Identifier: Apache-2.0
"""Vision Transformer (arXiv:2010.11929) with the options of its successors."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.errors import UserError
from vit_jax.fields import value
from vit_jax.models import base
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.layers import masking
from vit_jax.models.layers.attention import AttentionImpl, check_impl
from vit_jax.models.layers.block import Block, BlockConfig
from vit_jax.models.layers.dense import Dense, classifier
from vit_jax.models.layers.drop import Dropout, DropPathRule, drop_path_rates
from vit_jax.models.layers.init import POS_EMBED, RULES, Init, Initializer
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.norm import BatchNorm, layer_norm
from vit_jax.models.layers.patch import PatchEmbed, prepend
from vit_jax.models.layers.pool import MapPool, Pool
from vit_jax.models.layers.posemb import FIXED, PosEmbed, resample, sincos2d
from vit_jax.models.layers.stack import stack
from vit_jax.models.layers.token_merging import check_merging, mean, merging_stack
from vit_jax.models.layers.weighted import spread
from vit_jax.mup import check_mup
from vit_jax.sharding import BATCH_AXES, constrain


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ViTConfig(ModelConfig):
    """A Vision Transformer; the defaults are ViT-B/16 of google-research/vision_transformer.

    Attributes:
        patch: (rows, columns) of a patch in pixels; (P,) means square.
        dim, depth, num_heads, mlp_dim: D, L, h, F.
        pool: what the head sees.
        pool_prefix: `gap` and `map` see the class token and the registers too, not only patches.
        fc_norm: with `gap`, normalise after the mean instead of before it (timm's fc_norm).
        class_token: prepend a class token; needed by `cls`.
        distilled: a distillation token after the class token with a head of its own; the logits are
            the mean of both heads', in training too, and `aux` holds each (arXiv:2012.12877
            section 4).
        num_registers: register tokens after those (arXiv:2309.16588).
        pos_embed: where positions come from.
        pos_embed_prefix: the learned table also covers the tokens before the patches.
        dynamic_image_size: take images of any size that the patch divides, and resample the
            learned table, made for `image_size`, inside the forward pass (bicubic, antialiased).
        pre_logits_dim: width of a Dense + tanh before the head; 0 for none.
        head_norm: normalise the head's input by BatchNorm without scale and bias: MAE's linear
            probe (arXiv:2111.06377 appendix A.1).
        pre_norm: normalise the embedded tokens before the first block (CLIP).
        patch_bias, qkv_bias: have those biases.
        qk_norm: normalise q and k per head (arXiv:2302.05442).
        layer_scale: initial LayerScale; 0 for none.
        gelu, norm_eps: facts of the weights.
        dropout_rate: after the position embedding, the attention and both MLP layers.
        attention_dropout_rate: on the attention weights.
        drop_path_rate, drop_path_rule: stochastic depth and how it runs over the blocks.
        patch_drop_rate: share of each image's patches that training leaves out after the position
            embedding (arXiv:2208.07220); the tokens before them stay.
        init: the code by whose rules weights are initialised.
        attention: which attention kernel.
        token_merging: pairs of similar tokens that every block merges (arXiv:2210.09461), its
            parameters as ever, its loop unrolled; `gap` and `map` weigh tokens by their patches.
        mup_base_dim: the `dim` at which learning rate and decay were tuned, for maximal update
            parametrisation (docs/mup.md); 0 is the standard one.
        mup_base_heads: the `num_heads` there; 0 says that heads were as wide as here.
    """

    patch: tuple[int, ...] = (16, 16)
    dim: int = value(768, least=1)
    depth: int = value(12, least=1)
    num_heads: int = value(12, least=1)
    mlp_dim: int = value(3072, least=1)
    pool: Pool = Pool.CLS
    pool_prefix: bool = False
    fc_norm: bool = False
    class_token: bool = True
    distilled: bool = False
    num_registers: int = value(0, least=0)
    pos_embed: PosEmbed = PosEmbed.LEARNED
    pos_embed_prefix: bool = True
    dynamic_image_size: bool = False
    pre_logits_dim: int = value(0, least=0)
    head_norm: bool = False
    pre_norm: bool = False
    patch_bias: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: float = 0.0
    gelu: Gelu = Gelu.TANH
    norm_eps: float = 1e-6
    dropout_rate: float = value(0.0, least=0, below=1)
    attention_dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)
    drop_path_rule: DropPathRule = DropPathRule.LINEAR
    patch_drop_rate: float = value(0.0, least=0, below=1)
    init: Init = Init.JAX
    zero_head: bool = True
    attention: AttentionImpl = value(AttentionImpl.AUTO, free=True)
    token_merging: int = 0
    mup_base_dim: int = value(0, least=0)
    mup_base_heads: int = value(0, least=0)


def num_prefix(cfg: ViTConfig) -> int:
    """Return how many tokens come before the patches: class, distillation and register tokens."""
    return int(cfg.class_token) + int(cfg.distilled) + cfg.num_registers


def validate(cfg: ViTConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    check_transformer(cfg, base.patch_grid(cfg))


def check_transformer(cfg: ViTConfig, shape: tuple[int, int]) -> None:
    """Do what `validate` does, for a grid of patches that a backbone may have changed."""
    base.check_heads(cfg.dim, cfg.num_heads)
    if cfg.pool is Pool.CLS and not cfg.class_token:
        raise UserError("model.pool=cls needs model.class_token=true (or choose gap or map)")
    if cfg.distilled and cfg.pool is not Pool.CLS:
        raise UserError("model.distilled needs model.pool=cls: each token has a head of its own")
    if cfg.distilled and not cfg.num_classes:
        raise UserError("model.distilled has two heads; set model.num_classes")
    if cfg.distilled and cfg.pre_logits_dim:
        raise UserError("model.distilled has no pre-logits layer; set model.pre_logits_dim=0")
    if cfg.distilled and cfg.head_norm:
        raise UserError("model.distilled has two heads without a norm; set model.head_norm=False")
    if cfg.pool_prefix and cfg.pool is Pool.CLS:
        raise UserError("model.pool_prefix applies to model.pool=gap and map only")
    if cfg.fc_norm and cfg.pool is not Pool.GAP:
        raise UserError("model.fc_norm applies to model.pool=gap only")
    if cfg.pos_embed in FIXED and cfg.dim % 4:
        raise UserError(f"model.pos_embed={cfg.pos_embed} needs model.dim={cfg.dim} divisible by 4")
    half, head_dim = cfg.dtype is base.DType.BFLOAT16, cfg.dim // cfg.num_heads
    check_impl(cfg.attention, half, head_dim, cfg.attention_dropout_rate)
    if cfg.patch_drop_rate and cfg.token_merging:
        raise UserError("model.patch_drop_rate drops what model.token_merging merges; set one to 0")
    check_merging(cfg.token_merging, math.prod(shape), cfg.attention)
    check_mup(cfg)


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
        x = self._embed(x, shape, dtype)
        if train and cfg.patch_drop_rate:
            size = (len(x), x.shape[1] - num_prefix(cfg))
            kept = masking.drawn(self.make_rng("dropout"), size, cfg.patch_drop_rate)
        if kept is not None:
            x = masking.keep(x, kept, num_prefix(cfg))
        x = Dropout(cfg.dropout_rate, deterministic=not train)(x)
        if cfg.pre_norm:
            x = layer_norm(cfg.norm_eps, dtype, "norm_pre")(x)
        rates = drop_path_rates(cfg.drop_path_rate, cfg.depth, cfg.drop_path_rule)
        x, sizes = self._blocks(constrain(x, BATCH_AXES), jnp.asarray(rates), train)
        if not cfg.fc_norm:
            x = layer_norm(cfg.norm_eps, dtype, "norm")(x)
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
        x = PatchEmbed(patch, cfg.dim, cfg.init, dtype, cfg.patch_bias, name="patch_embed")(image)
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
    ) -> Float[Array, "B M D"]:
        """Add positions and prepend the prefix tokens.

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
            tiny = nn.initializers.normal(1e-6)  # as timm's reg_token
            registers = (1, cfg.num_registers, cfg.dim)
            prefix.append(self.param("reg_token", tiny, registers, jnp.float32))
        covers_prefix = cfg.pos_embed is PosEmbed.LEARNED and cfg.pos_embed_prefix
        table = None
        if cfg.pos_embed is PosEmbed.LEARNED:
            own = self._grid(base.pair(cfg.image_size, "image_size"))
            covered = num_prefix(cfg) if covers_prefix else 0
            length = covered + own[0] * own[1]
            table = self.param("pos_embed", POS_EMBED, (1, length, cfg.dim), jnp.float32)
            table = resample(table, covered, own, shape)
        elif cfg.pos_embed in FIXED:
            table = jnp.asarray(sincos2d(*shape, cfg.dim, cfg.pos_embed))[None]
        if table is not None and not covers_prefix:
            x = x + spread(jnp.asarray(table), x.shape, dtype)
        if prefix:
            x = prepend(jnp.concatenate(prefix, axis=1), x)
        if table is not None and covers_prefix:
            x = x + spread(jnp.asarray(table), x.shape, dtype)
        return x

    def _blocks(
        self, x: jax.Array, rates: jax.Array, train: bool
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N"] | None]:
        """Return the encoded tokens and how many patches each stands for (None: one each)."""
        cfg = self.cfg
        fields: dict[str, Any] = {"cfg": BlockConfig.of(cfg), "train": train}
        if cfg.token_merging and not self.is_initializing():  # the stack makes the parameters
            fields |= {"merged": cfg.token_merging, "num_prefix": num_prefix(cfg)}
            return merging_stack(self, x, rates, cfg.remat, fields)
        return stack(Block, cfg, name="blocks", depth=cfg.depth, **fields)(x, rates)

    def _pool(self, x: jax.Array, sizes: jax.Array | None, dtype: Any) -> Float[Array, "B D"]:
        cfg = self.cfg
        if cfg.pool is Pool.CLS:
            return x[:, 0]
        if not cfg.pool_prefix:
            x, sizes = jax.tree.map(lambda array: array[:, num_prefix(cfg) :], (x, sizes))
        if cfg.pool is Pool.MAP:
            return MapPool(BlockConfig.of(cfg), name="map_pool")(x, sizes)
        pooled = mean(x, sizes)
        return layer_norm(cfg.norm_eps, dtype, "fc_norm")(pooled) if cfg.fc_norm else pooled
