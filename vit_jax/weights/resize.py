# SPDX-License-Identifier: Apache-2.0
"""Bring position tables, Swin's bias tables and patch kernels to another size, as others do.

Every rule is separable: one matrix [new, old] per axis, in float64. Each is named for the code
whose results it reproduces; between them tables differ by far more than rounding.

Position tables that one side computes and the other stores are matched too: MAE's files, and runs
like it.
"""

import functools
import math
import re
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from vit_jax import models
from vit_jax.errors import UserError, setting
from vit_jax.models import ModelConfig
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d
from vit_jax.models.resample import (
    Grid,
    Matrix,
    antialiased,
    bilinear,
    centres,
    pseudo_inverse,
    sampled,
    triangle,
)
from vit_jax.weights.apply import Resizer
from vit_jax.weights.config import ResizeRule
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.layout import Shape

_KEY = "pos_embed"
_ERROR = 1e-4  # of a stored table; MAE's is float32


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel (doi:10.1109/TASSP.1981.1163711)."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def bicubic_antialiased(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return torch's bicubic with antialias=True: a = -0.5."""
    return antialiased(old, new, functools.partial(_cubic, a=-0.5))


def bicubic(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return torch's bicubic without antialias: a = -0.75, four taps, borders clamped."""
    return sampled(centres(old, new), old, functools.partial(_cubic, a=-0.75), reach=2)


def bilinear_aligned(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return `scipy.ndimage.zoom(order=1)`: bilinear, the first and the last samples kept."""
    return sampled(np.arange(new) * (old - 1) / max(new - 1, 1), old, triangle, reach=1)


def geometric(old: int, new: int) -> Float[np.ndarray, "new old"]:
    """Return BEiT's rule for bias tables (arXiv:2106.08254), with timm's linear interpolation.

    The old offsets 0, +-1, +-2 ... are laid at 0, +-1, +-(1 + q), +-(1 + q + q^2) ..., with the q
    in [1.01, 1.5] that lays the last of them at the last new one.
    """
    half, reach = old // 2, new // 2

    def positions(q: float) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(q ** np.arange(half))])

    low, high, q = 1.01, 1.5, 1.5
    while high - low > 1e-6:  # timm's bisection: its last q is felt in the fifth digit
        q = (low + high) / 2
        low, high = (low, q) if positions(q)[-1] > reach else (q, high)
    right = positions(q)
    there = np.concatenate([-right[:0:-1], right])
    wanted = np.arange(new) - reach
    return np.stack([np.interp(wanted, there, basis) for basis in np.eye(old)], axis=1)


# The matrices of each code by the last part of a parameter's name; not all have each.
_RULES: dict[ResizeRule, dict[str, Matrix]] = {
    ResizeRule.TIMM: {
        "pos_embed": bicubic_antialiased,
        "rel_pos_bias": geometric,
        "kernel": bicubic_antialiased,
    },
    ResizeRule.OFFICIAL: {"pos_embed": bicubic, "rel_pos_bias": bicubic},
    ResizeRule.GOOGLE: {"pos_embed": bilinear_aligned, "kernel": bilinear},
    ResizeRule.NAFLEX: {"pos_embed": antialiased, "kernel": antialiased},
    ResizeRule.TIMM_NPZ: {"pos_embed": bilinear, "kernel": bilinear},
}


def resize_grid(
    value: Num[np.ndarray, "H W D"], new: Grid, matrix: Matrix
) -> Float[np.ndarray, "P Q D"]:
    """Resample the first two axes of a grid of vectors."""
    rows, columns = matrix(value.shape[0], new[0]), matrix(value.shape[1], new[1])
    return np.einsum("pi,qj,ijd->pqd", rows, columns, value.astype(np.float64), optimize=True)


def resize_patch(
    kernel: Num[np.ndarray, "H W C D"], new: Grid, matrix: Matrix
) -> Float[np.ndarray, "P Q C D"]:
    """Resize a patch embedding's kernel so that resized patches give what the old ones gave.

    With the pseudo-inverse of the images' resize (layers.resample).
    """
    rows, columns = (
        pseudo_inverse(old, side, matrix) for old, side in zip(kernel.shape, new, strict=False)
    )
    return np.einsum("pi,qj,ijcd->pqcd", rows, columns, kernel.astype(np.float64), optimize=True)


def resizer(rule: ResizeRule, cfg: ModelConfig, old: ModelConfig | None = None) -> Resizer | None:
    """Return what brings a file's tables and kernels to the sizes of `cfg`'s model.

    With the rule AUTO that is timm's, with NONE None. `old` is the model that the file was saved
    from, where that is known; else its grids and windows are taken to be square.
    """
    if rule is ResizeRule.NONE:
        return None
    matrices = _RULES[ResizeRule.TIMM if rule is ResizeRule.AUTO else rule]

    def resize(name: str, value: np.ndarray, shape: Shape) -> np.ndarray:
        kind = name.rsplit("/", 1)[-1]

        def refuse(old: int, new: int) -> np.ndarray:
            what = "a patch kernel" if kind == "kernel" else "a bias table"
            raise UserError(
                f"init.resize={rule} has no rule to bring {what} from {old} to {new}; choose timm"
            )

        if value.shape == shape and (old is None or kind == "kernel"):
            return value
        matrix = matrices.get(kind, refuse)
        if kind == "pos_embed":
            out = _table(value, cfg, old, matrix)
        elif kind == "rel_pos_bias":
            out = _bias(name, value, cfg, old, matrix)
        else:
            out = resize_patch(value, (shape[0], shape[1]), matrix)
        return out.astype(np.float32)

    return resize


def positions(cfg: Any) -> tuple[int, Grid]:
    """Return how many positions of a `pos_embed` come before the patches', and their grid."""
    covered = models.num_prefix(cfg) if getattr(cfg, "pos_embed_prefix", False) else 0
    own = getattr(cfg, "base_grid", ())
    if own:
        return covered, models.pair(own, "base_grid")
    return covered, models.patch_grid(cfg, models.pair(cfg.image_size, "image_size"))


def _table(
    value: np.ndarray, cfg: ModelConfig, old: ModelConfig | None, matrix: Matrix
) -> np.ndarray:
    """Resample [L, P + N, D]: the P positions before the patches' are kept as they are.

    Registers that the file's model lacks get positions of zero: their tokens are trained (VPT).
    """
    prefix, new = positions(cfg)
    count = value.shape[1]
    old_prefix, there = positions(old) if old is not None else _square(count, prefix)
    added = prefix - old_prefix
    if added and added == getattr(cfg, "num_registers", 0):
        # They are the last of the prefix.
        registers = np.zeros((len(value), added, value.shape[-1]), value.dtype)
        value = np.concatenate([value[:, :old_prefix], registers, value[:, old_prefix:]], axis=1)
    elif added:
        raise UserError(
            f"pos_embed: the {count} positions of the file are {old_prefix} + {there[0]} x "
            f"{there[1]}, but the table of this config has {prefix} before its patches; choose "
            "model.class_token, distilled, num_registers and pos_embed_prefix as the file has them"
        )
    if there == new:
        return value
    patches = [resize_grid(each[prefix:].reshape(*there, -1), new, matrix) for each in value]
    resized = np.stack(patches).reshape(len(value), new[0] * new[1], -1)
    return np.concatenate([value[:, :prefix], resized], axis=1)


def _square(count: int, prefix: int) -> tuple[int, Grid]:
    """Split a number of positions into a prefix and a square, with the wanted prefix if it can."""
    for before in (prefix, 0, 1, 2):
        side = math.isqrt(max(count - before, 0))
        if side and side * side == count - before:
            return before, (side, side)
    raise UserError(
        f"pos_embed: {count} positions are not {prefix} and a square grid's; a table of another "
        "grid can be loaded at the model.image_size that it was trained with only"
    )


def _offsets(cfg: ModelConfig, stage: int) -> Grid:
    """Return the numbers of relative positions (2 Wh - 1, 2 Ww - 1) in a stage's windows."""
    windows = models.family(cfg).windows
    assert windows is not None, "a table of relative positions is of windows"
    height, width = windows(cfg)[stage]
    return 2 * height - 1, 2 * width - 1


def _bias(
    name: str, value: np.ndarray, cfg: ModelConfig, old: ModelConfig | None, matrix: Matrix
) -> np.ndarray:
    """Resample [(2 Wh - 1)(2 Ww - 1), h]."""
    found = re.search(r"(?:^|/)stage(\d+)/", name)
    stage = int(found[1]) if found else 0
    side = math.isqrt(len(value))
    if old is None and (side * side != len(value) or side % 2 == 0):
        raise UserError(f"{name}: {len(value)} offsets are no square window's")
    there = (side, side) if old is None else _offsets(old, stage)
    wanted = _offsets(cfg, stage)
    if there == wanted:
        return value
    grid = value.reshape(*there, -1)
    return resize_grid(grid, wanted, matrix).reshape(wanted[0] * wanted[1], -1)


def matched(source: WeightsFile, cfg: ModelConfig, old: ModelConfig | None = None) -> WeightsFile:
    """Return a file with the positions that a model expects of it.

    A model that computes its positions finds none in the file, whose table is the computed one; a
    model that learns them finds the table that the model `old` of the file computes.

    Raises UserError: the file has another table than the model computes.
    """
    kind: Any = getattr(cfg, _KEY, None)
    if kind in FIXED and _KEY in source.shapes:
        return _without(source, cfg, kind)
    if kind is PosEmbed.LEARNED and old is not None and getattr(old, _KEY, None) in FIXED:
        return _with(source, cfg, old)
    return source


def _without(source: WeightsFile, cfg: Any, kind: PosEmbed) -> WeightsFile:
    table = source.read(_KEY)[0]
    side = math.isqrt(len(table))  # the prefix, if any, is shorter than a row
    rows, columns = positions(cfg)[1]
    if len(table) - rows * columns not in range(side):
        rows = columns = side
    computed = sincos2d(rows, columns, cfg.dim, kind)
    prefix, patches = table[: len(table) - len(computed)], table[-len(computed) :]
    same = patches.shape == computed.shape and np.abs(patches - computed).max() < _ERROR
    if not same or np.abs(prefix).max(initial=0) > _ERROR:
        why = f"holds other positions than model.pos_embed={kind} computes"
        raise UserError(f"{source.name} {why}; set {setting('config.model.pos_embed=learned')}")
    shapes = {key: shape for key, shape in source.shapes.items() if key != _KEY}
    return WeightsFile(source.name, shapes, source.read)


def _with(source: WeightsFile, cfg: Any, old: Any) -> WeightsFile:
    prefix = positions(cfg)[0]
    computed = sincos2d(*positions(old)[1], cfg.dim, old.pos_embed)
    table = np.concatenate([np.zeros((prefix, cfg.dim), np.float32), computed])[None]
    shapes = {**source.shapes, _KEY: table.shape}
    return WeightsFile(source.name, shapes, lambda key: table if key == _KEY else source.read(key))
