# SPDX-License-Identifier: Apache-2.0
"""Position embeddings of a grid of patches."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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


def resample(
    table: Float[Array | np.ndarray, "1 N D"],
    num_prefix: int,
    old: tuple[int, int],
    new: tuple[int, int],
) -> Float[Array | np.ndarray, "1 M D"]:
    """Resample a learned table from one grid (rows, columns) to another; its prefix stays.

    The `cubic` of jax.image equals timm's resampling: a = -0.5, antialiased, borders renormalised.
    """
    if old == new:
        return table
    square = table[:, num_prefix:].reshape(1, *old, -1)
    square = jax.image.resize(square, (1, *new, square.shape[-1]), "cubic")
    rest = square.reshape(1, new[0] * new[1], -1)
    return jnp.concatenate([table[:, :num_prefix], rest], axis=1)
