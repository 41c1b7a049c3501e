# SPDX-License-Identifier: Apache-2.0
"""Position embeddings of a grid of patches."""

import enum

import numpy as np
from jaxtyping import Float


class PosEmbed(enum.StrEnum):
    """Where position information comes from."""

    LEARNED = "learned"
    SINCOS2D = "sincos2d"  # fixed, patches only
    NONE = "none"


def sincos2d(
    rows: int, columns: int, dim: int, temperature: float = 10_000.0
) -> Float[np.ndarray, "N D"]:
    """Return the fixed table of MoCo v3 (arXiv:2104.02057) in big_vision's channel order.

    The channels are sin(x w), cos(x w), sin(y w), cos(y w), a quarter each, in float32.
    """
    quarter = dim // 4
    omega = temperature ** -(np.arange(quarter) / max(quarter - 1, 1))
    y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1) * omega
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype(np.float32)
