# SPDX-License-Identifier: Apache-2.0
"""What is true of the family of the Vision Transformer.

DeiT (arXiv:2012.12877) and DeiT III (arXiv:2204.07118) are the ViT with PyTorch's numerics (exact
GELU, normal(0.02) weights): distillation adds a token and a head, DeiT III adds LayerScale and has
no class position. The image towers of CLIP (arXiv:2103.00020), which normalises the embedded tokens
and has no patch bias, and of SigLIP (arXiv:2303.15343), which has no class token and pools by
attention (`_siglip`) or by the mean (`_siglip_gap`), are ViTs too. So is AIMv2 (arXiv:2411.14402):
RMSNorm, of the patches too, SwiGLU, and no bias but those of the patches.
"""

from typing import Any

from flax import linen as nn

from vit_jax.models import base, facts
from vit_jax.models.families.vit import ViT
from vit_jax.models.families.vit_config import ViTConfig, num_prefix, validate
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.norm import TokenNorm
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed, PosResize, table_grid
from vit_jax.models.layers.rope import Rope


def attention(cfg: ViTConfig, grid: facts.Grid) -> facts.Attention:
    """Return which layers of a ViT or a hybrid attend, and which tokens the head reads."""
    blocks, prefix = "blocks/attn/weights", num_prefix(cfg)
    if cfg.pool is Pool.CLS:
        readers = slice(2 if cfg.distilled else 1)  # each of the two tokens has a head
        query = "class and distillation token" if cfg.distilled else "class token"
        layers = (facts.Heads("block", blocks, query, readers),)
        return facts.Attention("attention rollout of the class token", layers, (blocks,), readers)
    patches = slice(prefix, None)
    layers = (facts.Heads("block", blocks, "mean over all patches", patches),)
    if cfg.pool is Pool.GAP:
        read = slice(0 if cfg.pool_prefix else prefix, None)
        return facts.Attention("attention rollout, mean over the patches", layers, (blocks,), read)
    pooling = facts.Heads("pooling", f"{cfg.pool}_pool/weights", "learned query", None)
    method, layers = "attention of the pooling query", (*layers, pooling)
    return facts.Attention(method, layers, (blocks,), patches, pooling.weights)


def _network(cfg: ViTConfig) -> nn.Module:
    if cfg.native:
        from vit_jax.models.families.native import NativeViT  # most runs need none

        return NativeViT(cfg)
    return ViT(cfg)


def _images(cfg: ViTConfig) -> facts.Images:
    if cfg.native:
        clip = cfg.pos_embed_resize in (PosResize.PLAIN, PosResize.CORNERS)  # RADIO
        return facts.Images(facts.CLIP if clip else facts.HALF, 1.0)
    if cfg.pre_norm and cfg.rope is not Rope.NONE:  # PE
        return facts.Images(facts.HALF, 1.0)
    eva02 = cfg.mlp_norm or (cfg.rope_grid and cfg.class_token)
    if cfg.pre_norm or eva02 or cfg.patch_norm:  # CLIP, EVA-02, AIMv2
        return facts.Images(facts.CLIP, 1.0)
    if cfg.base_patch:
        return facts.Images(facts.HALF, 0.95, 0.95)
    # PyTorch's networks have DeiT's statistics; Google trained ViT and SigLIP.
    mean_std = facts.HALF if cfg.init is Init.JAX else facts.IMAGENET
    # Above 224 pixels SigLIP is trained, not fine-tuned.
    return facts.Images(mean_std, 0.9, 1.0 if cfg.class_token else 0.9)


_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_tanh", Gelu.QUICK: "quick_gelu"}
_POOLS = {Pool.CLS: "token", Pool.GAP: "avg", Pool.MAP: "map"}


def is_eva(cfg: ViTConfig) -> bool:
    """Return whether timm builds the model as its Eva, a ViT of later options."""
    no_key_bias = cfg.qkv_bias and not cfg.key_bias
    has_map = cfg.pool_heads or cfg.pool_mlp_dim or (cfg.pool is Pool.MAP and cfg.mlp != "gelu")
    return bool(cfg.rope is not Rope.NONE or no_key_bias or cfg.mlp_norm or has_map)


def timm_form(cfg: ViTConfig) -> facts.Form:
    """Return the form of timm's file, of its Eva that of the published networks."""
    if not is_eva(cfg):
        return facts.Form(packed=cfg.mlp is MlpKind.SWIGLU and not cfg.patch_norm)
    return facts.Form(
        gammas=True,
        separate=cfg.mlp_norm,
        packed=cfg.mlp is MlpKind.SWIGLU and not (cfg.mlp_norm or cfg.rope is Rope.DINOV3),
        split_bias=cfg.qkv_bias and not cfg.key_bias,
    )


def _eva(cfg: ViTConfig) -> facts.Timm:
    form, learned = timm_form(cfg), cfg.pos_embed is PosEmbed.LEARNED
    has_table = cfg.pos_embed is not PosEmbed.NONE
    args = facts.transformer_args(cfg)
    args |= facts.timm_args(cfg, "class_token", "qk_norm", num_reg_tokens="num_registers")
    args |= {
        "init_values": cfg.layer_scale or None,
        "dynamic_img_size": cfg.dynamic_image_size,
        "attn_type": "rope" if cfg.qkv_bias and cfg.key_bias else "eva",
        "qkv_fused": not form.separate,
        "swiglu_mlp": cfg.mlp is MlpKind.SWIGLU,
        "swiglu_align_to": 0 if form.packed else 1,
        "scale_mlp": cfg.mlp_norm,
        "global_pool": _POOLS[cfg.pool],
        "attn_pool_num_heads": cfg.pool_heads or cfg.num_heads,
        "attn_pool_mlp_ratio": facts.ratio(cfg.pool_mlp_dim or cfg.mlp_dim, cfg.dim),
        "use_fc_norm": cfg.fc_norm,
        "use_post_transformer_norm": not cfg.fc_norm,
        "use_pre_transformer_norm": cfg.pre_norm,
        "use_abs_pos_emb": has_table,
        "no_embed_class": has_table and not (learned and cfg.pos_embed_prefix),
        "use_rot_pos_emb": cfg.rope is not Rope.NONE,
        "rope_type": "cat" if cfg.rope in (Rope.NONE, Rope.LANG) else cfg.rope.value,
        "rope_temperature": cfg.rope_theta,
        "rope_grid_indexing": cfg.rope_order.value,
        "rope_grid_offset": cfg.rope_offset,
        "rope_rotate_half": cfg.rope is Rope.DINOV3,
        "ref_feat_shape": list(base.pair(cfg.rope_grid, "rope_grid")) if cfg.rope_grid else None,
    }
    fixed: dict[str, Any] = {"norm": TokenNorm.LAYER, "distilled": False, "token_merging": 0}
    if cfg.mlp is MlpKind.GELU or cfg.pool is Pool.MAP:
        fixed["gelu"] = Gelu.ERF
    if cfg.norm_eps != 1e-5:
        return facts.Timm("eva_giant_patch14_224", args, {**fixed, "norm_eps": 1e-6})
    # timm's functions take no None for what they have, such as a LayerScale.
    name = "vit_base_patch16_dinov3" if cfg.layer_scale else "vit_pe_core_base_patch16_224"
    return facts.Timm(name, args, fixed)


def _naflex(cfg: ViTConfig) -> facts.Timm:
    args = facts.transformer_args(cfg)
    del args["img_size"]  # it takes images of any
    args |= facts.timm_args(cfg, "class_token", "qk_norm", "pre_norm", "fc_norm", "final_norm")
    resize = cfg.pos_embed_resize
    args |= {
        "reg_tokens": cfg.num_registers,
        "init_values": cfg.layer_scale or None,
        "act_layer": _ACTS[cfg.gelu],
        "global_pool": _POOLS[cfg.pool],
        "pos_embed": cfg.pos_embed.value,
        "pos_embed_grid_size": list(table_grid(cfg)),
        "pos_embed_interp_mode": "bicubic" if resize is PosResize.CUBIC else "bilinear",
        "pos_embed_ar_preserving": cfg.pos_embed_square,
        "pos_embed_antialias": resize in (PosResize.CUBIC, PosResize.LINEAR),
        "pos_embed_align_corners": resize is PosResize.CORNERS,
    }
    fixed = {"norm_eps": 1e-6, "norm": TokenNorm.LAYER, "mlp": MlpKind.GELU, "mlp_norm": False}
    fixed |= {"patch_bias": True, "pre_norm": False, "key_bias": True, "pool_heads": 0}
    return facts.Timm("naflexvit_base_patch16_gap", args, {**fixed, "pool_mlp_dim": 0}, "embeds")


def timm(cfg: ViTConfig) -> facts.Timm:
    """Return timm's ViT of a config."""
    if cfg.native:
        return _naflex(cfg)
    if is_eva(cfg):
        return _eva(cfg)
    clip = cfg.norm_eps == 1e-5
    args = {**facts.transformer_args(cfg), "act_layer": _ACTS[cfg.gelu]}
    if cfg.layer_scale:
        args["init_values"] = cfg.layer_scale
    if cfg.dynamic_image_size:
        args["dynamic_img_size"] = True
    if cfg.distilled:
        fixed = {"norm_eps": 1e-6, "qk_norm": False, "pre_norm": False, "token_merging": 0}
        fixed |= {"norm": TokenNorm.LAYER, "mlp": MlpKind.GELU}
        return facts.Timm("deit_base_distilled_patch16_224", args, fixed)
    same = ("class_token", "fc_norm", "pre_norm", "qk_norm")
    args |= facts.timm_args(cfg, *same, reg_tokens="num_registers")
    args |= {"global_pool": _POOLS[cfg.pool], "pool_include_prefix": cfg.pool_prefix}
    # Whether the table covers the patches alone, as one of our fixed positions does.
    args["no_embed_class"] = not (cfg.pos_embed is PosEmbed.LEARNED and cfg.pos_embed_prefix)
    if cfg.pos_embed is PosEmbed.NONE:
        args["pos_embed"] = "none"
    name = "vit_base_patch16_clip_224" if clip else "vit_base_patch16_224"
    if cfg.norm is TokenNorm.RMS:
        name, clip, args["norm_layer"] = "vit_base_patch16_224", False, "rmsnorm"
    args |= {} if cfg.proj_bias else {"proj_bias": False}  # of the MLP too
    if cfg.patch_norm:
        del args["act_layer"], args["norm_layer"]  # which are as the architecture has them
        args["init_values"] = cfg.layer_scale or None
        fixed = {"norm": TokenNorm.RMS, "mlp": MlpKind.SWIGLU, "norm_eps": 1e-5}
        args["proj_bias"] = cfg.proj_bias
        return facts.Timm("aimv2_large_patch14_224", args, {**fixed, "token_merging": 0})
    if cfg.mlp is MlpKind.SWIGLU:  # DINOv2's has it, of the packed width
        name, clip, args["act_layer"] = "vit_giant_patch14_dinov2", False, "silu"
        args |= {"mlp_ratio": facts.ratio(2 * cfg.mlp_dim, cfg.dim)}
        args |= {"init_values": cfg.layer_scale or None}
    return facts.Timm(name, args, {"norm_eps": 1e-5 if clip else 1e-6, "token_merging": 0})


def timm_lacks(cfg: ViTConfig) -> str:
    """Return what a ViT or a hybrid has that timm's lacks, in words; "" for nothing."""
    if cfg.head_dim not in (0, cfg.dim / cfg.num_heads):
        return f"model.head_dim={cfg.head_dim}: its heads share model.dim={cfg.dim}"
    if cfg.base_patch:
        return f"model.base_patch={cfg.base_patch}: its models have patches of one size"
    if cfg.token_merging:
        return f"model.token_merging={cfg.token_merging}: its models do not merge"
    if cfg.window or cfg.axial:
        field = "axial" if cfg.axial else f"window={cfg.window}"
        return f"model.{field}: its models attend among all patches"
    if cfg.pos_embed in (PosEmbed.LEARNED2D, PosEmbed.RELATIVE) or cfg.pos_embed_at != "stem":
        return f"model.pos_embed={cfg.pos_embed} at the {cfg.pos_embed_at}: it adds one table once"
    if cfg.head_norm:
        return "model.head_norm: its heads have no BatchNorm"
    if cfg.pool is Pool.QUERY:
        return "model.pool=query: its attention pooling has an MLP"
    if cfg.proj_bias != cfg.mlp_bias:
        return (
            f"model.mlp_bias={cfg.mlp_bias} with model.proj_bias={cfg.proj_bias}: it has one flag"
        )
    aimv2 = cfg.norm is TokenNorm.RMS and cfg.mlp is MlpKind.SWIGLU
    if cfg.patch_norm and not aimv2:
        return "model.patch_norm without model.norm=rms and model.mlp=swiglu"
    plain = is_eva(cfg) or cfg.distilled
    for field, differs in (("patch_norm", cfg.patch_norm), ("proj_bias", not cfg.proj_bias)):
        if plain and differs:
            return f"model.{field}={getattr(cfg, field)} beside its other fields"
    if cfg.pre_logits_dim:
        return f"model.pre_logits_dim={cfg.pre_logits_dim}: its heads are one layer"
    if cfg.rope_registers:
        return "model.rope_registers: its registers do not turn"
    if is_eva(cfg):
        if cfg.distilled:
            return "model.distilled with rotary positions or biases of q and v alone"
        sees_prefix = cfg.pool_prefix or not num_prefix(cfg)
        if cfg.pool is Pool.MAP and not sees_prefix:
            return "model.pool=map of the patches alone (model.pool_prefix) in its Eva"
        if cfg.pool is Pool.GAP and cfg.pool_prefix and num_prefix(cfg):
            return "model.pool_prefix with model.pool=gap in its Eva"
    if cfg.patch_bias and cfg.pre_norm:
        return "model.patch_bias with model.pre_norm: before a norm its patches have no bias"
    if cfg.distilled and cfg.num_registers:
        return f"model.num_registers={cfg.num_registers} with model.distilled"
    if cfg.distilled and not (cfg.pos_embed_prefix and cfg.pos_embed is PosEmbed.LEARNED):
        return "model.distilled without learned positions of both tokens (model.pos_embed_prefix)"
    return ""


def timm_zeros(cfg: ViTConfig) -> dict[str, int]:
    """Return the patch bias that timm's ViT has unless it normalises the embedded tokens."""
    return {} if cfg.patch_bias or cfg.pre_norm else {"patch_embed.proj.bias": cfg.dim}


FAMILY = facts.Family(
    config=ViTConfig,
    module=_network,
    variants=facts.variants(ViTConfig),
    validate=validate,
    num_prefix=num_prefix,
    hides_patches=True,
    can_be_pruned=True,
    attention=attention,
    images=_images,
    timm=timm,
    timm_names=lambda cfg: facts.names("NaFlexViT" if cfg.native else "ViT", "timm"),
    timm_form=timm_form,
    timm_lacks=timm_lacks,
    timm_zeros=timm_zeros,
    official_names=facts.names("ViT", "official"),  # DeiT III's
    google=facts.Google(facts.names("ViT", "google")),
)
