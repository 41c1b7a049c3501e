# SPDX-License-Identifier: Apache-2.0
"""Images of their own sizes in rows of patches: where each patch lies, and its position.

A row of L patches holds one image and padding (NaFlex, arXiv:2502.14786 section 2.4) or several
images one after another (NaViT, arXiv:2307.06304). What says so is `grids` [B, S, 2], the (rows,
columns) of each row's images in their order, (0, 0) for none: a program is compiled for L and S
alone. Positions are those of timm's NaFlexVit.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.errors import UserError
from vit_jax.models.layers.init import POS_EMBED
from vit_jax.models.layers.posemb import PosEmbed, PosResize, table_grid

_EXACT = jax.lax.Precision.HIGHEST
_KINDS = (PosEmbed.LEARNED, PosEmbed.FACTORIZED, PosEmbed.NONE)


class Places(NamedTuple):
    """Where the patches of rows lie, each an int32 array.

    Attributes:
        segment: [B, L], which image of its row a patch belongs to; S for padding.
        at: [B, L, 2], its row and column in that image; (0, 0) for padding.
        grid: [B, L, 2], the rows and columns of that image; (1, 1) for padding.
    """

    segment: Any
    at: Any
    grid: Any


def places(grids: Int[Array, "B S 2"], length: int) -> Places:
    """Return where the patches of rows of a length lie: image after image, row by row."""
    areas = grids.prod(axis=-1)
    ends = jnp.cumsum(areas, axis=-1)
    index = jnp.arange(length)[None]
    segment = (index[..., None] >= ends[:, None, :]).sum(axis=-1).astype(jnp.int32)
    # Padding reads one image more, of a single patch.
    starts = jnp.pad(ends - areas, ((0, 0), (0, 1)))
    grid = jnp.pad(grids, ((0, 0), (0, 1), (0, 0)), constant_values=1)
    grid = jnp.take_along_axis(grid, segment[..., None], axis=1)
    inside = index - jnp.take_along_axis(starts, segment, axis=1)
    inside = jnp.where(segment < grids.shape[1], inside, 0)
    columns = jnp.maximum(grid[..., 1], 1)
    return Places(segment, jnp.stack([inside // columns, inside % columns], axis=-1), grid)


def positions(module: nn.Module, cfg: Any, at: Places) -> Float[Array, "B L D"] | None:
    """Return the positions of patches by the parameters of a module; None of a model without."""
    if cfg.pos_embed is PosEmbed.NONE:
        return None
    rows, columns = table_grid(cfg)
    grid = at.grid
    if cfg.pos_embed_square:
        grid = jnp.broadcast_to(grid.max(axis=-1, keepdims=True), grid.shape)
    if cfg.pos_embed is PosEmbed.FACTORIZED:
        total = 0.0
        for axis, (name, side) in enumerate((("pos_embed_y", rows), ("pos_embed_x", columns))):
            table = module.param(name, POS_EMBED, (1, side, cfg.dim), jnp.float32)
            weights = _plain(at.at[..., axis], grid[..., axis], side)
            total += jnp.matmul(weights, jnp.asarray(table)[0], precision=_EXACT)
        return jnp.asarray(total)
    shape = (1, rows * columns, cfg.dim)
    table = jnp.asarray(module.param("pos_embed", POS_EMBED, shape, jnp.float32))[0]
    if cfg.pos_embed_resize in (PosResize.PLAIN, PosResize.CORNERS):
        return _four(table, (rows, columns), at.at, grid, cfg.pos_embed_resize)
    weigh = _cubic if cfg.pos_embed_resize is PosResize.CUBIC else _triangle
    y = _antialiased(at.at[..., 0], grid[..., 0], rows, weigh)
    x = _antialiased(at.at[..., 1], grid[..., 1], columns, weigh)
    both = (y[..., :, None] * x[..., None, :]).reshape(*y.shape[:2], rows * columns)
    return jnp.matmul(both, table, precision=_EXACT)


def _four(
    table: jax.Array, shape: tuple[int, int], at: jax.Array, grid: jax.Array, kind: PosResize
) -> Float[Array, "B L D"]:
    """Read a table by the four entries around a place, which is cheap for a large one."""
    (rows, columns), total = shape, 0.0
    where = functools.partial(_source, corners=kind is PosResize.CORNERS)
    y, x = (where(at[..., i], grid[..., i], side) for i, side in enumerate(shape))
    top, left = jnp.floor(y).astype(jnp.int32), jnp.floor(x).astype(jnp.int32)
    for i, along in ((top, 1 - (y - top)), (top + 1, y - top)):
        for j, across in ((left, 1 - (x - left)), (left + 1, x - left)):
            index = jnp.minimum(i, rows - 1) * columns + jnp.minimum(j, columns - 1)
            total += (along * across)[..., None] * table[index]
    return jnp.asarray(total)


def _source(at: jax.Array, new: jax.Array, old: int, *, corners: bool) -> jax.Array:
    """Return where the sample `at` of `new` lies among `old`, as torch's interpolate has it."""
    if corners:
        return at * ((old - 1) / jnp.maximum(new - 1, 1).astype(jnp.float32))
    return jnp.clip((at + 0.5) * (old / new.astype(jnp.float32)) - 0.5, 0, old - 1)


def _plain(at: jax.Array, new: jax.Array, old: int) -> Float[Array, "B L old"]:
    """Weigh the entries of a table linearly, without antialias."""
    source = _source(at, new, old, corners=False)[..., None]
    return _triangle(jnp.arange(old)[None, None] - source)


def _antialiased(at: jax.Array, new: jax.Array, old: int, weigh: Any) -> Float[Array, "B L old"]:
    """Weigh the entries of a table by a kernel that is widened where the table shrinks."""
    ratio = old / new.astype(jnp.float32)
    centre = ((at + 0.5) * ratio - 0.5)[..., None]
    weights = weigh((jnp.arange(old)[None, None] - centre) / jnp.maximum(ratio, 1)[..., None])
    return weights / weights.sum(axis=-1, keepdims=True)


def _triangle(x: jax.Array) -> jax.Array:
    return jnp.maximum(1 - jnp.abs(x), 0)


def _cubic(x: jax.Array) -> jax.Array:
    """Return Keys' kernel with a = -0.5."""
    x = jnp.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return jnp.where(x <= 1, near, jnp.where(x < 2, far, 0.0))


def check_native(cfg: Any) -> None:
    """Refuse for a model of images of any size what has no rule for them."""
    if cfg.pos_embed not in _KINDS:
        raise UserError(
            f"model.native has no pos_embed={cfg.pos_embed}; choose {', '.join(_KINDS)}",
            field="model.pos_embed",
        )
    learned = cfg.pos_embed is PosEmbed.LEARNED
    rules = {
        "rope=none: rotary positions are of one grid": cfg.rope != "none",
        "pos_embed_prefix=False: its table is of patches alone": learned and cfg.pos_embed_prefix,
        "pos_embed_at=stem": cfg.pos_embed_at != "stem",
        "pos_embed_resize=cubic": not learned and cfg.pos_embed_resize is not PosResize.CUBIC,
        "pos_embed_square=False": cfg.pos_embed is PosEmbed.NONE and cfg.pos_embed_square,
        "dynamic_image_size=False, which native includes": cfg.dynamic_image_size,
        "distilled=False": cfg.distilled,
        "pool_prefix=False": cfg.pool_prefix,
        "patch_drop_rate=0": cfg.patch_drop_rate,
        "token_merging=0": cfg.token_merging,
        "window=0, axial=False": cfg.window or cfg.axial,
        "head_norm=False, whose statistics would count padding": cfg.head_norm,
        "final_norm=True with fc_norm": cfg.fc_norm and not cfg.final_norm,
        "base_patch=()": cfg.base_patch,
    }
    for needed, broken in rules.items():
        if broken:
            raise UserError(f"model.native needs model.{needed}", field="model.native")
