# SPDX-License-Identifier: Apache-2.0
"""Maximal update parametrisation: what part a ViT's parameter plays as the width grows.

Tensor Programs V (arXiv:2203.03466, table 3) tells parameters apart by which of their sides grow.
What follows from it for initial values is in `models.mup`, for learning rates in `optim.rules`.
"""

import dataclasses
import enum
import re


class Part(enum.StrEnum):
    """Which sides of a parameter grow with the width."""

    INPUT = "input"  # one: into the width (patches, positions, tokens), biases, scales
    HIDDEN = "hidden"  # both
    OUTPUT = "output"  # one: out of the width
    HEAD_NORM = "head norm"  # one, with the width of an attention head
    FIXED = "fixed"  # none: the head's bias, a hybrid's ResNet


# The first that is found in a name, that of one layer or of a stack, decides.
_PARTS = (
    (re.compile(r"^head[a-z_]*/kernel$"), Part.OUTPUT),
    (re.compile(r"^(?:head[a-z_]*|backbone)/"), Part.FIXED),
    (re.compile(r"^(?:blocks|map_pool)/.*kernel$"), Part.HIDDEN),
    (re.compile(r"/[qk]_norm/"), Part.HEAD_NORM),
)


def part(name: str) -> Part:
    """Return the part of a parameter of a ViT, a DeiT or a hybrid by its name."""
    return next((found for pattern, found in _PARTS if pattern.search(name)), Part.INPUT)


@dataclasses.dataclass(frozen=True)
class Growth:
    """How many times as wide a model is as the one that its settings were tuned on.

    Attributes:
        dim: m of the paper, the width.
        head_dim: the width of an attention head.
    """

    dim: float
    head_dim: float
