# SPDX-License-Identifier: Apache-2.0
"""Position embeddings of a grid of patches."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.layers.resample import antialiased, resized


class PosEmbed(enum.StrEnum):
    """Where position information comes from."""

    LEARNED = "learned"
    SINCOS2D = "sincos2d"  # fixed, patches only, from big_vision
    SINCOS2D_MAE = "sincos2d_mae"  # fixed, patches only, from MAE (arXiv:2111.06377)
    NONE = "none"


FIXED = frozenset({PosEmbed.SINCOS2D, PosEmbed.SINCOS2D_MAE})


def sincos2d(
    rows: int, columns: int, dim: int, kind: PosEmbed = PosEmbed.SINCOS2D
) -> Float[np.ndarray, "N D"]:
    """Return a fixed table, one of `FIXED`, in float32.

    The channels are sin(x w), cos(x w), sin(y w), cos(y w), a quarter each, x the column and y the
    row of a patch. With q channels in a quarter the frequencies w_i, i = 0 to q - 1, are

        SINCOS2D      10000 ** (-i / (q - 1)), from 1 to 1/10000: big_vision's
        SINCOS2D_MAE  10000 ** (-i / q): MAE's, and, with x and y exchanged, MoCo v3's
    """
    quarter = dim // 4
    intervals = quarter if kind == PosEmbed.SINCOS2D_MAE else max(quarter - 1, 1)
    omega = 10_000.0 ** -(np.arange(quarter) / intervals)
    y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1) * omega
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype(np.float32)


def resample(
    table: Float[Array | np.ndarray, "1 N D"],
    num_prefix: int,
    old: tuple[int, int],
    new: tuple[int, int],
    *,
    linear: bool = False,
) -> Float[Array | np.ndarray, "1 M D"]:
    """Resample a learned table from one grid (rows, columns) to another, except its prefix.

    The `cubic` of jax.image equals timm's resampling: a = -0.5, antialiased, borders renormalised.
    `linear`, FlexiViT's, is antialiased too, as jax.image's.
    """
    if old == new:
        return table
    square = table[:, num_prefix:].reshape(1, *old, -1)
    if linear:
        square = resized(jnp.asarray(square[0]), new, antialiased)
    else:
        square = jax.image.resize(square, (1, *new, square.shape[-1]), "cubic")
    rest = square.reshape(1, new[0] * new[1], -1)
    return jnp.concatenate([table[:, :num_prefix], rest], axis=1)
