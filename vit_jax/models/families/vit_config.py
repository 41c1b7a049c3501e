# SPDX-License-Identifier: Apache-2.0
"""The config of a Vision Transformer, and which of its fields go together."""

import dataclasses
import math

from vit_jax.errors import UserError
from vit_jax.models import base
from vit_jax.models.base import ModelConfig
from vit_jax.models.layers.attention import AttentionImpl, check_impl
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import (
    FIXED,
    PosEmbed,
    PosEmbedAt,
    PosResize,
    check_positions,
    placed,
)
from vit_jax.models.layers.rope import Rope, RopeOrder, check_rope
from vit_jax.models.layers.token_merging import check_merging
from vit_jax.models.mup import check_mup
from vit_jax.settings.fields import value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ViTConfig(ModelConfig):
    """A Vision Transformer; the defaults are ViT-B/16 of google-research/vision_transformer.

    Attributes:
        patch: (rows, columns) of a patch in pixels; (P,) means square.
        base_patch: size of the patch kernel that is trained, from which one for `patch` is made
            inside the forward pass (FlexiViT, arXiv:2212.08013, layers.resample); () for `patch`.
        base_grid: (rows, columns) of the learned positions that go with it, resized alike; of a
            `native` model its own, () for those of `image_size`.
        drawn_patches: sides of square patches from which every training step draws its own, by the
            seed and the step; what evaluates the model takes `patch`. () for `patch` throughout.
        dim, depth, num_heads, mlp_dim: D, L, h, F.
        head_dim: d of a network whose heads are not as wide as D / h, such as a pruned one; 0 is
            D / h.
        pool: what the head sees.
        pool_heads, pool_mlp_dim: heads of `map` and `query`, MLP width of `map`; 0 for those of the
            blocks.
        pool_prefix: `gap`, `map` and `query` see the class token and the registers too.
        fc_norm: with `gap`, normalise after the mean instead of before it (timm's fc_norm).
        class_token: prepend a class token; needed by `cls`.
        distilled: a distillation token after the class token with a head of its own; the logits are
            the mean of both heads', in training too, and `aux` holds each (arXiv:2012.12877
            section 4).
        num_registers: register tokens after those (arXiv:2309.16588).
        pos_embed: where positions come from.
        pos_embed_at: where a learned table is added, once or before every block.
        pos_embed_prefix: the learned table also covers the tokens before the patches.
        dynamic_image_size: take images of any size that the patch divides, and resample the
            learned table, made for `image_size`, inside the forward pass (bicubic, antialiased).
        native: images keep their sizes: the model takes rows of patches with the (rows, columns) of
            each image, padded or several to a row, or images of any size (docs/naflex.md).
        pos_embed_resize: with `native`, how the table is brought to the grid of each image.
        pos_embed_square: with `native`, bring it to a square of the grid's longer side and cut,
            which keeps its proportions (timm's ar_preserving).
        final_norm: normalise the tokens after the last block; RADIO, which is `native`, does not.
        pre_logits_dim: width of a Dense + tanh before the head; 0 for none.
        head_norm: normalise the head's input by BatchNorm without scale and bias: MAE's linear
            probe (arXiv:2111.06377 appendix A.1).
        pre_norm: normalise the embedded tokens before the first block (CLIP).
        patch_norm: normalise the patches before positions are added (AIMv2).
        patch_bias, qkv_bias, proj_bias, mlp_bias: have those biases; `proj` is attention's last
            layer.
        key_bias: with `qkv_bias`, the keys have one too; else queries and values alone (EVA).
        qk_norm: normalise q and k per head (arXiv:2302.05442), before they turn.
        layer_scale: initial LayerScale; 0 for none.
        norm: of every norm of tokens.
        mlp: what the hidden layer of the blocks' MLPs is.
        mlp_norm: normalise that hidden layer (arXiv:2303.11331, EVA-02's sub-LN).
        gelu, norm_eps: facts of the weights.
        rope: rotary positions, besides those of `pos_embed` (layers.rope).
        rope_theta: the base of its frequencies.
        rope_grid: (rows, columns) that the places of `lang` are scaled to, whatever the image has;
            () for the image's own.
        rope_offset: the place of the first patch along each axis.
        rope_order: which axis comes first.
        rope_registers: the registers turn as well, as a square grid (ViT-5).
        dropout_rate: after the position embedding, the attention and both MLP layers.
        attention_dropout_rate: on the attention weights.
        drop_path_rate, drop_path_rule: stochastic depth and how it runs over the blocks.
        patch_drop_rate: share of each image's patches that training leaves out after the position
            embedding (arXiv:2208.07220); the tokens before them stay.
        init: the code by whose rules weights are initialised.
        attention: which attention kernel.
        token_merging: pairs of similar tokens that every block merges (arXiv:2210.09461), its
            parameters as ever, its loop unrolled; `gap` and `map` weigh tokens by their patches.
        window: rows and columns of the windows, in patches, within which blocks attend
            (layers.local, as ViTDet's, arXiv:2203.16527); 0 for attention among all patches. Tokens
            before the patches see all, and all see them.
        global_blocks: how many blocks attend among all patches nevertheless, evenly spaced, the
            last block one of them.
        axial: blocks attend within rows and within columns in turn (arXiv:2010.11929 appendix D.6,
            whose one block is two of these).
        mup_base_dim: the `dim` at which learning rate and decay were tuned, for maximal update
            parametrisation (docs/mup.md); 0 is the standard one.
        mup_base_heads: the `num_heads` there; 0 says that heads were as wide as here.
    """

    patch: tuple[int, ...] = value((16, 16), unit="pixels")
    base_patch: tuple[int, ...] = value((), least=1, unit="pixels")
    base_grid: tuple[int, ...] = value((), least=1)
    drawn_patches: tuple[int, ...] = value((), least=1, unit="pixels")
    dim: int = value(768, least=1)
    depth: int = value(12, least=1)
    num_heads: int = value(12, least=1)
    mlp_dim: int = value(3072, least=1)
    head_dim: int = value(0, least=0, note="0 is dim/num_heads")
    pool: Pool = Pool.CLS
    pool_heads: int = value(0, least=0)
    pool_mlp_dim: int = value(0, least=0)
    pool_prefix: bool = False
    fc_norm: bool = False
    class_token: bool = True
    distilled: bool = False
    num_registers: int = value(0, least=0)
    pos_embed: PosEmbed = PosEmbed.LEARNED
    pos_embed_at: PosEmbedAt = PosEmbedAt.STEM
    pos_embed_prefix: bool = True
    dynamic_image_size: bool = False
    native: bool = False
    pos_embed_resize: PosResize = PosResize.CUBIC
    pos_embed_square: bool = False
    final_norm: bool = True
    pre_logits_dim: int = value(0, least=0)
    head_norm: bool = False
    pre_norm: bool = False
    patch_norm: bool = False
    patch_bias: bool = True
    qkv_bias: bool = True
    key_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    layer_scale: float = 0.0
    norm: TokenNorm = TokenNorm.LAYER
    mlp: MlpKind = MlpKind.GELU
    mlp_norm: bool = False
    gelu: Gelu = Gelu.TANH
    norm_eps: float = 1e-6
    rope: Rope = Rope.NONE
    rope_theta: float = value(100.0, least=1)
    rope_grid: tuple[int, ...] = value((), least=1)
    rope_offset: float = value(0.0, least=0)
    rope_order: RopeOrder = RopeOrder.IJ
    rope_registers: bool = False
    dropout_rate: float = value(0.0, least=0, below=1)
    attention_dropout_rate: float = value(0.0, least=0, below=1)
    drop_path_rate: float = value(0.0, least=0, below=1)
    drop_path_rule: DropPathRule = DropPathRule.LINEAR
    patch_drop_rate: float = value(0.0, least=0, below=1)
    init: Init = Init.JAX
    zero_head: bool = True
    attention: AttentionImpl = value(AttentionImpl.AUTO, free=True)
    token_merging: int = 0
    window: int = value(0, least=0, note="0 is none")
    global_blocks: int = value(0, least=0)
    axial: bool = False
    mup_base_dim: int = value(0, least=0)
    mup_base_heads: int = value(0, least=0)


def num_prefix(cfg: ViTConfig) -> int:
    """Return how many tokens come before the patches: class, distillation and register tokens."""
    return int(cfg.class_token) + int(cfg.distilled) + cfg.num_registers


def validate(cfg: ViTConfig) -> None:
    """Refuse fields that do not go together, in one line that names them."""
    check_transformer(cfg, base.patch_grid(cfg))
    _check_native(cfg)
    needs_grid = bool(cfg.base_patch) and cfg.pos_embed not in (*FIXED, PosEmbed.NONE)
    if not cfg.native and bool(cfg.base_grid) != needs_grid:
        what = "model.base_grid is of the learned positions that go with model.base_patch"
        raise UserError(f"{what}; set both, such as 7 and 32, or neither")
    if cfg.drawn_patches and not cfg.base_patch:
        raise UserError(
            "model.drawn_patches has one kernel for all; set model.base_patch, say 32",
            field="model.drawn_patches",
        )


def _check_native(cfg: ViTConfig) -> None:
    if cfg.native:
        from vit_jax.models.layers.native import check_native  # late: most models take one size

        check_native(cfg)
        return
    usual = {"pos_embed_square": False, "pos_embed_resize": PosResize.CUBIC, "final_norm": True}
    for name, kept in usual.items():
        if getattr(cfg, name) != kept:
            raise UserError(
                f"model.{name} is of images of any size; set model.native=True",
                field=f"model.{name}",
            )
    if cfg.pos_embed is PosEmbed.FACTORIZED:
        raise UserError("model.pos_embed=factorized needs model.native=True")


def check_transformer(cfg: ViTConfig, shape: tuple[int, int]) -> None:
    """Do what `validate` does, for a grid of patches that a backbone may have changed."""
    if not cfg.head_dim:
        base.check_heads(cfg.dim, cfg.num_heads)
    if cfg.pool is Pool.CLS and not cfg.class_token:
        raise UserError("model.pool=cls needs model.class_token=true (or choose gap or map)")
    if cfg.distilled and cfg.pool is not Pool.CLS:
        raise UserError(
            "model.distilled needs model.pool=cls: each token has a head of its own",
            field="model.distilled",
        )
    if cfg.distilled and not cfg.num_classes:
        raise UserError(
            "model.distilled has two heads; set model.num_classes", field="model.distilled"
        )
    if cfg.distilled and cfg.pre_logits_dim:
        raise UserError(
            "model.distilled has no pre-logits layer; set model.pre_logits_dim=0",
            field="model.distilled",
        )
    if cfg.distilled and cfg.head_norm:
        raise UserError(
            "model.distilled has two heads without a norm; set model.head_norm=False",
            field="model.distilled",
        )
    if cfg.pool_prefix and cfg.pool is Pool.CLS:
        raise UserError(
            "model.pool_prefix applies to model.pool=gap, map and query", field="model.pool_prefix"
        )
    if cfg.fc_norm and cfg.pool is not Pool.GAP:
        raise UserError("model.fc_norm applies to model.pool=gap only", field="model.fc_norm")
    attending = cfg.pool in (Pool.MAP, Pool.QUERY)
    if cfg.pool_heads and not attending:
        raise UserError("model.pool_heads applies to model.pool=map and query")
    if cfg.pool_mlp_dim and cfg.pool is not Pool.MAP:
        raise UserError("model.pool_mlp_dim applies to model.pool=map only")
    if cfg.pool_heads or (cfg.head_dim and attending):  # the pool's share the width
        pooling = cfg.pool_heads or cfg.num_heads
        base.check_heads(cfg.dim, pooling, ("model.dim", "model.pool_heads"))
    check_rope(cfg)
    check_positions(cfg)
    if cfg.pos_embed in FIXED and cfg.dim % 4:
        raise UserError(f"model.pos_embed={cfg.pos_embed} needs model.dim={cfg.dim} divisible by 4")
    half, head_dim = cfg.dtype is base.DType.BFLOAT16, cfg.head_dim or cfg.dim // cfg.num_heads
    check_impl(cfg.attention, half, head_dim, cfg.attention_dropout_rate)
    if cfg.patch_drop_rate and cfg.token_merging:
        raise UserError(
            "model.patch_drop_rate drops what model.token_merging merges; set one to 0",
            field="model.patch_drop_rate",
        )
    if cfg.patch_drop_rate and (cfg.window or cfg.axial or placed(cfg)):
        why = "and model.window, axial, rope and positions in the blocks need the places of all"
        raise UserError(
            f"model.patch_drop_rate leaves patches out, {why}; set it to 0",
            field="model.patch_drop_rate",
        )
    check_merging(cfg.token_merging, math.prod(shape), cfg.attention)
    if cfg.window or cfg.axial or cfg.global_blocks:
        from vit_jax.models.layers.local import check_local  # late: most models attend everywhere

        check_local(cfg, shape)
    check_mup(cfg)
