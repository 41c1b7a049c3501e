# SPDX-License-Identifier: Apache-2.0
"""Maximal update parametrisation of a ViT (Tensor Programs V, arXiv:2203.03466, table 3).

Its rules depend on which sides of a parameter grow with the width. Those for initial values and
attention logits are here, those for learning rates in `optim.rules`.
"""

import enum
import math
import re
from typing import Any, NamedTuple

from vit_jax import trees
from vit_jax.errors import UserError


class Role(enum.StrEnum):
    """Which sides of a parameter grow with the width."""

    INPUT = "input"  # one: into the width (patches, positions, tokens), biases, scales
    HIDDEN = "hidden"  # both
    OUTPUT = "output"  # one: out of the width
    HEAD_NORM = "head norm"  # one, with the width of an attention head
    FIXED = "fixed"  # none: the head's bias, a hybrid's ResNet


# The first pattern that matches a name, of one layer or of a stack, decides.
_ROLES = (
    (re.compile(r"^head[a-z_]*/kernel$"), Role.OUTPUT),
    (re.compile(r"^(?:head[a-z_]*|backbone)/"), Role.FIXED),
    (re.compile(r"^(?:blocks|map_pool)/.*kernel$"), Role.HIDDEN),
    (re.compile(r"/[qk]_norm/"), Role.HEAD_NORM),
)


def role(name: str) -> Role:
    """Return the role of a parameter of a ViT, a DeiT or a hybrid by its name."""
    return next((found for pattern, found in _ROLES if pattern.search(name)), Role.INPUT)


class Growth(NamedTuple):
    """A model's width over its base's: m of the paper, and the same of an attention head."""

    dim: float
    head_dim: float


def growth(cfg: Any) -> Growth | None:
    """Return the growth of a model of any family over its base; None without a base."""
    base = getattr(cfg, "mup_base_dim", 0)
    if not base:
        return None
    heads = cfg.mup_base_heads
    return Growth(cfg.dim / base, (cfg.dim // cfg.num_heads) / (base // heads) if heads else 1.0)


def logit_factor(cfg: Any) -> float:
    """Return what multiplies attention's logits besides 1/sqrt(d): sqrt(base d)/d in all.

    After some steps q and k are aligned, so q k^T grows as d, not as sqrt(d) (definition 4.1).
    """
    wider = growth(cfg)
    return wider.head_dim**-0.5 if wider else 1.0


def check_mup(cfg: Any) -> None:
    """Raise UserError for a base that cannot be, or a layer without a rule."""
    base, heads = cfg.mup_base_dim, cfg.mup_base_heads
    if heads and not base:
        raise UserError(
            f"model.mup_base_heads={heads} has no effect without model.mup_base_dim; set both"
        )
    if heads and base % heads:
        raise UserError(f"model.mup_base_heads={heads} does not divide model.mup_base_dim={base}")
    for field, value in (("rope", "mixed"), ("pos_embed", "relative"), ("pool", "query")):
        if base and getattr(cfg, field) == value:
            raise UserError(
                f"model.mup_base_dim has no rule for what model.{field}={value} learns",
                field="model.mup_base_dim",
            )
    for name in ("head_dim", "pool_heads", "pool_mlp_dim", "pre_logits_dim"):
        if base and getattr(cfg, name):
            raise UserError(
                f"model.mup_base_dim has no rule for model.{name}; set that to 0",
                field="model.mup_base_dim",
            )


def widened(params: trees.PyTree, cfg: Any) -> trees.PyTree:
    """Scale initial values for the width; bit for bit the same at the base's, or without a base.

    The deviation is the base's for INPUT, the base's / sqrt(m) for HIDDEN, the base's / m for
    OUTPUT. Kernels of Xavier's rule, sqrt(2 / (in + out)), shrink by themselves as the width grows.
    """
    wider = growth(cfg)
    if wider is None:
        return params
    m, is_xavier = wider.dim, cfg.init not in ("timm", "vit5")

    def xavier_growth(other: int) -> float:
        """Return the base's deviation over the model's, if the kernel's other side is fixed."""
        return math.sqrt((cfg.dim + other) / (cfg.mup_base_dim + other)) if is_xavier else 1.0

    def widen(name: str, value: Any) -> Any:
        factor = 1.0
        if role(name) is Role.HIDDEN and not is_xavier:
            factor = m**-0.5
        elif role(name) is Role.OUTPUT:
            factor = xavier_growth(cfg.num_classes) / m
        elif name == "map_pool/latent":  # drawn as a kernel of one input
            factor = xavier_growth(1)
        return value if factor == 1 else value * factor

    return trees.map_named(widen, params)
