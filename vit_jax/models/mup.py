# SPDX-License-Identifier: Apache-2.0
"""Maximal update parametrisation of a ViT: growth over its base, and its initial values."""

import math
from typing import Any

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models.layers.init import Init
from vit_jax.mup import Growth, Part, part


def growth(cfg: Any) -> Growth | None:
    """Return how much wider a model of any family is than its base; None without a base."""
    base = getattr(cfg, "mup_base_dim", 0)
    if not base:
        return None
    heads = cfg.mup_base_heads
    return Growth(cfg.dim / base, (cfg.dim // cfg.num_heads) / (base // heads) if heads else 1.0)


def logit_factor(cfg: Any) -> float:
    """Return what multiplies attention's logits besides 1/sqrt(d): sqrt(base d)/d in all.

    After some steps q and k are aligned, and q k^T grows as d does, not as sqrt(d)
    (arXiv:2203.03466, definition 4.1).
    """
    wider = growth(cfg)
    return wider.head_dim**-0.5 if wider else 1.0


def check_mup(cfg: Any) -> None:
    """Refuse a base that cannot be, and a layer without a rule.

    Raises:
        UserError: naming the fields and what they may be.
    """
    base, heads = cfg.mup_base_dim, cfg.mup_base_heads
    if heads and not base:
        raise UserError(
            f"model.mup_base_heads={heads} has no effect without model.mup_base_dim; set both"
        )
    if heads and base % heads:
        raise UserError(f"model.mup_base_heads={heads} does not divide model.mup_base_dim={base}")
    if base and cfg.pre_logits_dim:
        raise UserError("model.mup_base_dim has no rule for model.pre_logits_dim; set that to 0")


def widened(params: trees.PyTree, cfg: Any) -> trees.PyTree:
    """Bring initial values to the scale of arXiv:2203.03466, table 3.

    At the base's width, and in the standard parametrisation, they stay bit for bit.
    """
    wider = growth(cfg)
    if wider is None:
        return params

    def widen(name: str, value: Any) -> Any:
        factor = _factor(name, cfg, wider.dim)
        return value if factor == 1 else value * factor

    return trees.map_named(widen, params)


def _factor(name: str, cfg: Any, m: float) -> float:
    """Return the deviation that a parameter is to have over that of its initializer.

    It is the base's for INPUT, the base's / sqrt(m) for HIDDEN, the base's / m for OUTPUT. Kernels
    of Xavier's rule, sqrt(2 / (in + out)), shrink by themselves where both sides grow.
    """
    kind, is_xavier = part(name), cfg.init is not Init.TIMM
    if kind is Part.HIDDEN:
        return 1.0 if is_xavier else m**-0.5
    if kind is Part.OUTPUT:
        return (_xavier_growth(cfg, cfg.num_classes) if is_xavier else 1.0) / m
    if name == "map_pool/latent" and is_xavier:  # drawn as a kernel of one input
        return _xavier_growth(cfg, 1)
    return 1.0


def _xavier_growth(cfg: Any, other: int) -> float:
    """Return the base's deviation over the model's, of a kernel whose other side does not grow."""
    return math.sqrt((cfg.dim + other) / (cfg.mup_base_dim + other))
