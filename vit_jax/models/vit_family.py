# SPDX-License-Identifier: Apache-2.0
"""What is true of the family of the Vision Transformer.

DeiT (arXiv:2012.12877) and DeiT III (arXiv:2204.07118) are the ViT with PyTorch's numerics (exact
GELU, normal(0.02) weights): distillation adds a token and a head, DeiT III adds LayerScale and has
no class position. The image towers of CLIP (arXiv:2103.00020), which normalises the embedded tokens
and has no patch bias, and of SigLIP (arXiv:2303.15343), which has no class token and pools by
attention (`_siglip`) or by the mean (`_siglip_gap`), are ViTs too.
"""

from vit_jax.models import facts
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.vit import ViT, ViTConfig, num_prefix, validate


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
    pooling = facts.Heads("pooling", "map_pool/weights", "learned query", None)
    method, layers = "attention of the pooling query", (*layers, pooling)
    return facts.Attention(method, layers, (blocks,), patches, pooling.weights)


def _images(cfg: ViTConfig) -> facts.Images:
    if cfg.pre_norm:  # CLIP
        mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
        return facts.Images((mean, std), 1.0)
    # PyTorch's networks have DeiT's statistics; Google trained ViT and SigLIP.
    mean_std = facts.IMAGENET if cfg.init is Init.TIMM else facts.HALF
    # Above 224 pixels SigLIP is trained, not fine-tuned.
    return facts.Images(mean_std, 0.9, 1.0 if cfg.class_token else 0.9)


_ACTS = {Gelu.ERF: "gelu", Gelu.TANH: "gelu_tanh", Gelu.QUICK: "quick_gelu"}
_POOLS = {Pool.CLS: "token", Pool.GAP: "avg", Pool.MAP: "map"}


def timm(cfg: ViTConfig) -> facts.Timm:
    """Return timm's ViT of a config."""
    clip = cfg.norm_eps == 1e-5
    args = {**facts.transformer_args(cfg), "act_layer": _ACTS[cfg.gelu]}
    if cfg.layer_scale:
        args["init_values"] = cfg.layer_scale
    if cfg.dynamic_image_size:
        args["dynamic_img_size"] = True
    if cfg.distilled:
        fixed = {"norm_eps": 1e-6, "qk_norm": False, "pre_norm": False, "token_merging": 0}
        return facts.Timm("deit_base_distilled_patch16_224", args, fixed)
    same = ("class_token", "fc_norm", "pre_norm", "qk_norm")
    args |= facts.timm_args(cfg, *same, reg_tokens="num_registers")
    args |= {"global_pool": _POOLS[cfg.pool], "pool_include_prefix": cfg.pool_prefix}
    # Whether the table covers the patches alone, as one of our fixed positions does.
    args["no_embed_class"] = not (cfg.pos_embed is PosEmbed.LEARNED and cfg.pos_embed_prefix)
    if cfg.pos_embed is PosEmbed.NONE:
        args["pos_embed"] = "none"
    name = "vit_base_patch16_clip_224" if clip else "vit_base_patch16_224"
    return facts.Timm(name, args, {"norm_eps": 1e-5 if clip else 1e-6, "token_merging": 0})


def timm_lacks(cfg: ViTConfig) -> str:
    """Return what a ViT or a hybrid has that timm's lacks, in words; "" for nothing."""
    if cfg.head_dim not in (0, cfg.dim / cfg.num_heads):
        return f"model.head_dim={cfg.head_dim}: its heads share model.dim={cfg.dim}"
    if cfg.token_merging:
        return f"model.token_merging={cfg.token_merging}: its models do not merge"
    if cfg.window or cfg.axial:
        field = "axial" if cfg.axial else f"window={cfg.window}"
        return f"model.{field}: its models attend among all patches"
    if cfg.head_norm:
        return "model.head_norm: its heads have no BatchNorm"
    if cfg.pre_logits_dim:
        return f"model.pre_logits_dim={cfg.pre_logits_dim}: its heads are one layer"
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
    module=ViT,
    variants=facts.variants(ViTConfig),
    validate=validate,
    num_prefix=num_prefix,
    hides_patches=True,
    can_be_pruned=True,
    attention=attention,
    images=_images,
    timm=timm,
    timm_names=lambda cfg: facts.names("ViT", "timm"),
    timm_lacks=timm_lacks,
    timm_zeros=timm_zeros,
    official_names=facts.names("ViT", "official"),  # DeiT III's
    google=facts.Google(facts.names("ViT", "google")),
)
