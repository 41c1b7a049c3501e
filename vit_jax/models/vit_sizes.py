# SPDX-License-Identifier: Apache-2.0
"""The sizes of the Vision Transformer, and its variants by name.

Ti, S (arXiv:2012.12877, arXiv:2106.10270), B, L, H (arXiv:2010.11929 table 1), g, G
(arXiv:2106.04560 table 2), So400m (arXiv:2305.13035), mu and M (big_vision).
"""

from typing import Any

from vit_jax.models.vit import ViTConfig

# name: (D, L, F, h)
SIZES = {
    "mu": (32, 1, 128, 2),
    "ti": (192, 12, 768, 3),
    "s": (384, 12, 1536, 6),
    "m": (512, 12, 2048, 8),
    "b": (768, 12, 3072, 12),
    "l": (1024, 24, 4096, 16),
    "h": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
    "so400m": (1152, 27, 4304, 16),
}
PATCHES = (8, 14, 16, 32)


def sized(size: str, patch: int, **fields: Any) -> ViTConfig:
    """Return the config of a size of `SIZES` and a square patch, with other fields."""
    dim, depth, mlp_dim, num_heads = SIZES[size]
    shape = {"dim": dim, "depth": depth, "mlp_dim": mlp_dim, "num_heads": num_heads}
    return ViTConfig(patch=(patch, patch), **shape, **fields)


VARIANTS: dict[str, ViTConfig] = {
    f"vit_{size}{patch}": sized(size, patch) for size in SIZES for patch in PATCHES
}
