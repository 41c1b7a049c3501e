# SPDX-License-Identifier: Apache-2.0
"""The image towers of CLIP (arXiv:2103.00020) and SigLIP (arXiv:2303.15343) as classifiers.

Both are the Vision Transformer: CLIP normalises the embedded tokens, has no patch bias, and
OpenAI's weights use QuickGELU; SigLIP has no class token and pools by attention (`_siglip`) or by
the mean (`_siglip_gap`).
"""

from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.vit import ViTConfig
from vit_jax.models.vit_sizes import sized


def _clip(size: str, patch: int) -> ViTConfig:
    # PyTorch's LayerNorm default, unlike the ViT's 1e-6.
    return sized(size, patch, pre_norm=True, patch_bias=False, norm_eps=1e-5, gelu=Gelu.QUICK)


def _siglip(size: str, patch: int, pool: Pool) -> ViTConfig:
    # Google trained with the tanh GELU; timm runs some of the weights with `gelu=erf`, of these
    # sizes b16, so400m14 and, but for 512 pixels, l16 (timm 1.0.31).
    return sized(size, patch, pool=pool, class_token=False)


_SIGLIP = (("b", 16), ("b", 32), ("l", 16), ("so400m", 14), ("so400m", 16))
VARIANTS: dict[str, ViTConfig] = {
    **{f"vit_{s}{p}_clip": _clip(s, p) for s, p in (("b", 32), ("b", 16), ("l", 14))},
    **{f"vit_{s}{p}_siglip": _siglip(s, p, Pool.MAP) for s, p in _SIGLIP},
    **{f"vit_{s}{p}_siglip_gap": _siglip(s, p, Pool.GAP) for s, p in _SIGLIP},
}
