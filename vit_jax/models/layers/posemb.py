# SPDX-License-Identifier: Apache-2.0
"""Position embeddings of a grid of patches."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models import base
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.layers.init import POS_EMBED
from vit_jax.models.resample import antialiased, resized


class PosEmbed(enum.StrEnum):
    """Where position information comes from."""

    LEARNED = "learned"
    LEARNED2D = "learned2d"  # patches only: half of the width for the column, half for the row
    RELATIVE = "relative"  # in attention: a key for each distance in the sequence
    FACTORIZED = "factorized"  # a row's plus a column's, for images of any size (layers.native)
    SINCOS2D = "sincos2d"  # fixed, patches only, from big_vision
    SINCOS2D_MAE = "sincos2d_mae"  # fixed, patches only, from MAE (arXiv:2111.06377)
    NONE = "none"


class PosResize(enum.StrEnum):
    """How a learned table is brought to the grid of an image of its own size (layers.native)."""

    CUBIC = "cubic"  # antialiased, a = -0.5
    LINEAR = "linear"  # antialiased: SigLIP 2
    PLAIN = "plain"  # bilinear, not antialiased: RADIO
    CORNERS = "corners"  # the same, the corners of both grids in one place


class PosEmbedAt(enum.StrEnum):
    """Where a learned table is added (arXiv:2010.11929 appendix D.4)."""

    STEM = "stem"  # once, before the first block
    LAYERS = "layers"  # before every block, each with a table of its own
    SHARED = "shared"  # before every block, the same table


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


def crossed(
    module: nn.Module, grid: tuple[int, int], dim: int, count: int
) -> Float[Array, "L N D"]:
    """Return `count` tables from a parameter for the columns, [L, columns, D/2], one for the rows.

    The channels of a patch are its column's, then its row's (arXiv:2010.11929 appendix D.4).
    """
    rows, columns = grid
    x = module.param("pos_embed_x", POS_EMBED, (count, columns, dim // 2), jnp.float32)
    y = module.param("pos_embed_y", POS_EMBED, (count, rows, dim // 2), jnp.float32)
    shape = (count, rows, columns, dim // 2)
    x = jnp.broadcast_to(jnp.asarray(x)[:, None], shape)
    y = jnp.broadcast_to(jnp.asarray(y)[:, :, None], shape)
    return jnp.concatenate([x, y], axis=-1).reshape(count, rows * columns, dim)


def relative_logits(module: nn.Module, q: Float[Array, "B h T d"]) -> Float[Array, "B h T T"]:
    """Return q_i r_(i-j) / sqrt(d), in float32, of the parameter r [2T-1, d] that heads share.

    Tokens before the patches have the first places of the sequence. arXiv:2010.11929 appendix D.4
    says neither this nor that the logits are scaled as those of the keys are.
    """
    count, width = q.shape[-2:]
    table = module.param("rel_embed", POS_EMBED, (2 * count - 1, width), jnp.float32)
    places = np.arange(count)
    keys = jnp.asarray(table)[places[:, None] - places + count - 1].astype(q.dtype)
    scaled = q * width**-0.5
    return jnp.einsum("bhid,ijd->bhij", scaled, keys, preferred_element_type=jnp.float32)


def table_grid(cfg: Any) -> tuple[int, int]:
    """Return the (rows, columns) of a table of positions for images of any size."""
    return base.pair(cfg.base_grid, "base_grid") if cfg.base_grid else base.patch_grid(cfg)


def placed(cfg: Any) -> str:
    """Return the setting without which no block needs to know where its tokens lie; "" if none."""
    if getattr(cfg, "rope", "none") != "none":
        return "rope=none"
    if getattr(cfg, "pos_embed", "") == PosEmbed.RELATIVE:
        return "pos_embed=learned"
    return "pos_embed_at=stem" if getattr(cfg, "pos_embed_at", "stem") != "stem" else ""


def check_positions(cfg: Any) -> None:
    """Raise UserError for positions that do not go with each other or with other fields."""
    kind, at = cfg.pos_embed, cfg.pos_embed_at
    inside = kind is PosEmbed.RELATIVE or at is not PosEmbedAt.STEM
    sized = kind in (PosEmbed.LEARNED2D, PosEmbed.RELATIVE) or at is PosEmbedAt.LAYERS
    learned = (PosEmbed.LEARNED, PosEmbed.LEARNED2D)
    name = f"model.pos_embed={kind}" if at is PosEmbedAt.STEM else f"model.pos_embed_at={at}"
    kernel = cfg.attention in (AttentionImpl.CUDNN, AttentionImpl.PALLAS)
    halves = "has a half of model.dim for each axis; set an even one"
    rules = [
        (at is not PosEmbedAt.STEM and kind not in learned, "is of pos_embed=learned or learned2d"),
        (kind is PosEmbed.LEARNED2D and cfg.dim % 2, halves),
        (kind is PosEmbed.RELATIVE and kernel, "adds to attention's logits; set attention=auto"),
    ]
    for field in ("token_merging", "window", "axial"):
        rules.append((inside and getattr(cfg, field), f"is of all tokens; unset model.{field}"))
    for field in ("dynamic_image_size", "base_grid", "drawn_patches"):
        rules.append((sized and getattr(cfg, field, False), f"is of one grid; unset model.{field}"))
    for broken, why in rules:
        if broken:
            raise UserError(f"{name} {why}")
