# SPDX-License-Identifier: Apache-2.0
"""Position tables that one side computes and the other stores: MAE's files, and runs like it."""

import math
from typing import Any

import numpy as np

from vit_jax.errors import UserError, setting
from vit_jax.models import ModelConfig
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.resize import positions

_KEY = "pos_embed"
_ERROR = 1e-4  # of a stored table; MAE's is float32


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
