# SPDX-License-Identifier: Apache-2.0
"""Rotary positions: attention sees how far apart two patches lie (arXiv:2104.09864), in 2-D.

The channels of a query or key head are d/2 pairs, each turned by an angle; their product with
another head turned alike depends on the difference of the angles only. Half of the pairs turn with
the row of a patch, half with its column, at d/4 frequencies. Tokens without a place do not turn.
"""

import dataclasses
import enum
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models import base
from vit_jax.models.layers.init import Initializer

REGISTER_THETA = 100.0  # of ViT-5's registers


class Rope(enum.StrEnum):
    """Whose rotary positions."""

    NONE = "none"
    LANG = "lang"  # EVA-02's, timm's `cat`, Naver's axial, PE's, ViT-5's: places counted in patches
    MIXED = "mixed"  # Naver's: both axes turn each pair, at frequencies that a head learns
    DINOV3 = "dinov3"  # places between -1 and 1 in every image


class RopeOrder(enum.StrEnum):
    """Which axis turns the first half of the pairs (of MIXED: has the first frequencies)."""

    IJ = "ij"  # the row
    XY = "xy"  # the column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotation:
    """What turns the queries and keys of a sequence: its tokens' places, and the frequencies.

    Attributes:
        grid: (rows, columns) of the patches, the last tokens.
        reference: the grid that places are scaled to; () is `grid`.
        unturned: tokens at the start.
        registers: tokens between those and the patches that turn as a square grid of their own.
    """

    kind: Rope
    theta: float
    order: RopeOrder
    offset: float
    grid: tuple[int, int]
    reference: tuple[int, ...] = ()
    unturned: int = 0
    registers: int = 0

    @classmethod
    def of(cls, cfg: Any, grid: tuple[int, int], num_prefix: int) -> "Rotation | None":
        """Return that of a model's config for one grid of patches; None for no rotation."""
        if cfg.rope is Rope.NONE:
            return None
        registers = cfg.num_registers if cfg.rope_registers else 0
        return cls(
            kind=cfg.rope,
            theta=cfg.rope_theta,
            order=cfg.rope_order,
            offset=cfg.rope_offset,
            grid=grid,
            reference=base.pair(cfg.rope_grid, "rope_grid") if cfg.rope_grid else (),
            unturned=num_prefix - registers,
            registers=registers,
        )


def places(rotation: Rotation) -> Float[np.ndarray, "N 2"]:
    """Return the place of each patch along both axes, in the rotation's order."""
    axes = []
    for i, size in enumerate(rotation.grid):
        t = np.arange(size) + rotation.offset
        if rotation.kind is Rope.DINOV3:
            t = 2 * (t + 0.5) / size - 1
        elif rotation.reference:
            t = t / size * rotation.reference[i]
        axes.append(t)
    found = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    return found if rotation.order is RopeOrder.IJ else found[:, ::-1]


@functools.lru_cache(maxsize=64)
def fixed_angles(rotation: Rotation, head_dim: int) -> Float[np.ndarray, "T P"]:
    """Return the angle of each pair of channels of each token, in float64; MIXED has no such."""
    quarter = head_dim // 4
    powers = -np.arange(quarter) / quarter
    scale = 2 * math.pi if rotation.kind is Rope.DINOV3 else 1.0
    patches = places(rotation)[:, :, None] * (scale * rotation.theta**powers)
    side = math.isqrt(rotation.registers)
    corners = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1)
    registers = corners.reshape(-1, 2, 1) * REGISTER_THETA**powers
    still = np.zeros((rotation.unturned, head_dim // 2))
    turned = (part.reshape(-1, head_dim // 2) for part in (registers, patches))
    return np.concatenate([still, *turned])


def mixed_init(theta: float) -> Initializer:
    """Return the initializer of MIXED's frequencies [2, h, P], those along each axis.

    The magnitudes are those of fixed ones, twice; the two halves point in orthogonal directions,
    which are turned by one random angle for each head.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        quarter = shape[-1] // 2
        magnitudes = jnp.asarray(theta ** (-np.arange(quarter) / quarter), dtype)[None]
        turn = jax.random.uniform(key, (shape[1], 1), dtype, 0, 2 * math.pi)
        along, across = jnp.cos(turn) * magnitudes, jnp.sin(turn) * magnitudes
        x = jnp.concatenate([along, -across], axis=-1)
        y = jnp.concatenate([across, along], axis=-1)
        return jnp.stack([x, y])

    return init


def mixed_angles(rotation: Rotation, frequencies: Float[Array, "2 h P"]) -> Float[Array, "h T P"]:
    """Return the angle of each pair of channels of each head and token from learned frequencies."""
    x, y = jnp.asarray(places(rotation), jnp.float32).T[:, None, :, None]
    angles = x * frequencies[0][:, None] + y * frequencies[1][:, None]
    return jnp.pad(angles, ((0, 0), (rotation.unturned, 0), (0, 0)))


def rotate(
    x: Float[Array, "B h T d"],
    cos: Float[Array, "1 #h T P"],
    sin: Float[Array, "1 #h T P"],
    halves: bool,
) -> Float[Array, "B h T d"]:
    """Turn each pair of channels by its angle, in float32.

    With `halves` channels i and i + d/2 are a pair, else 2i and 2i + 1.
    """
    wide = x.astype(jnp.float32)
    if halves:
        first, second = jnp.split(wide, 2, axis=-1)
    else:
        first, second = jnp.moveaxis(wide.reshape(*x.shape[:-1], -1, 2), -1, 0)
    turned = first * cos - second * sin, second * cos + first * sin
    if halves:
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)
    return jnp.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)


def turn(
    module: nn.Module, rotation: Rotation, q: Float[Array, "B h T d"], k: Float[Array, "B h T d"]
) -> tuple[Float[Array, "B h T d"], Float[Array, "B h T d"]]:
    """Rotate queries and keys; `module` holds the parameter `rope_freqs` where they are learned."""
    _, heads, _, width = q.shape
    if rotation.kind is Rope.MIXED:
        init = mixed_init(rotation.theta)
        learned = module.param("rope_freqs", init, (2, heads, width // 2), jnp.float32)
        angles = mixed_angles(rotation, jnp.asarray(learned))
        cos, sin = jnp.cos(angles)[None], jnp.sin(angles)[None]
    else:
        fixed = fixed_angles(rotation, width)[None, None]
        cos, sin = (jnp.asarray(f(fixed), jnp.float32) for f in (np.cos, np.sin))
    halves = rotation.kind is Rope.DINOV3
    return rotate(q, cos, sin, halves), rotate(k, cos, sin, halves)


def check_rope(cfg: Any) -> None:
    """Raise UserError for fields of a model's rotary positions that do not go together."""
    kind, defaults = cfg.rope, type(cfg)()
    head_dim = cfg.head_dim or cfg.dim // cfg.num_heads
    if kind is Rope.NONE:
        for field in ("theta", "grid", "offset", "order", "registers"):
            name = f"rope_{field}"
            if getattr(cfg, name) != getattr(defaults, name):
                value = getattr(cfg, name)
                raise UserError(f"model.{name}={value} has no effect without model.rope; set both")
        return
    if head_dim % 4:
        raise UserError(
            f"model.rope={kind} turns d/4 pairs of channels by each axis; the width of a head, "
            f"dim/num_heads={head_dim}, must be a multiple of 4"
        )
    if cfg.rope_grid and kind is not Rope.LANG:
        raise UserError(
            f"model.rope_grid scales the places of model.rope=lang, not of {kind}",
            field="model.rope_grid",
        )
    if cfg.rope_grid:
        base.pair(cfg.rope_grid, "rope_grid")
    if cfg.rope_offset and kind is Rope.MIXED:
        raise UserError(
            "model.rope_offset moves the places of lang and dinov3, not of rope=mixed",
            field="model.rope_offset",
        )
    count = cfg.num_registers
    is_square = count and math.isqrt(count) ** 2 == count
    if cfg.rope_registers and not (is_square and kind is Rope.LANG):
        raise UserError(
            "model.rope_registers turns a square of registers by model.rope=lang, not "
            f"model.num_registers={count} by model.rope={kind}",
            field="model.rope_registers",
        )
    if cfg.token_merging:
        raise UserError(
            f"model.token_merging={cfg.token_merging} gives tokens no place that model.rope={kind} "
            "could turn them by; set one of the two to 0 or none"
        )
