# SPDX-License-Identifier: Apache-2.0
"""DeiT (arXiv:2012.12877), its distilled form, and DeiT III (arXiv:2204.07118).

All are the Vision Transformer with PyTorch's numerics (exact GELU, normal(0.02) weights):
distillation adds a token and a head, DeiT III adds LayerScale and has no class position.
"""

from typing import Any

from vit_jax.models.layers.drop_path import DropPathRule
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.vit import ViTConfig
from vit_jax.models.vit_sizes import sized


def _deit(size: str, patch: int, **fields: Any) -> ViTConfig:
    return sized(size, patch, gelu=Gelu.ERF, init=Init.TIMM, zero_head=False, **fields)


def _deit3(size: str, patch: int) -> ViTConfig:
    # facebookresearch/deit models_v2: LayerScale from 1e-4 (timm: 1e-6), one rate of stochastic
    # depth for all blocks (timm: linear).
    return _deit(
        size,
        patch,
        pos_embed_prefix=False,
        layer_scale=1e-4,
        drop_path_rule=DropPathRule.CONSTANT,
    )


VARIANTS: dict[str, ViTConfig] = {
    **{f"deit_{size}16": _deit(size, 16) for size in ("ti", "s", "b")},
    **{f"deit_{size}16_distilled": _deit(size, 16, distilled=True) for size in ("ti", "s", "b")},
    **{f"deit3_{size}16": _deit3(size, 16) for size in ("s", "m", "b", "l")},
    "deit3_h14": _deit3("h", 14),
}
