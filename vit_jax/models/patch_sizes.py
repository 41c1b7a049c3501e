# SPDX-License-Identifier: Apache-2.0
"""The patch sizes of a FlexiViT (arXiv:2212.08013): one model for all, one drawn for each step.

As in big_vision's proj/flexi every step of training has one size, the same for all its images and
on all hosts, and sizes are drawn uniformly.
"""

import dataclasses
from typing import Any

import numpy as np

from vit_jax.errors import UserError

# Where the words begin in Philox's counter, far from those that order and change the examples.
_DRAWS = 3 << 192
_WORD = 2**64


def at(cfg: Any, patch: int) -> Any:
    """Return the config of the same parameters at square patches of a side; 0 for its own.

    Raises UserError: a model of one patch size.
    """
    if not patch:
        return cfg
    if not getattr(cfg, "base_patch", ()):
        raise UserError("only a FlexiViT, by model.base_patch, has patches of several sizes; set 0")
    return dataclasses.replace(cfg, patch=(patch, patch), drawn_patches=())


def draws(cfg: Any) -> tuple[int, ...]:
    """Return the sides of patches among which training draws, all as likely; (0,) for one size."""
    return getattr(cfg, "drawn_patches", ()) or (0,)


def sides(cfg: Any) -> tuple[int, ...]:
    """Return the different ones of `draws`, smallest first, which is the dearest."""
    return tuple(sorted(set(draws(cfg))))


def drawn(cfg: Any, seed: int, step: int) -> int:
    """Return which of `sides` a step has, a function of the seed and the step alone."""
    choices = draws(cfg)
    if len(choices) == 1:
        return 0
    # Raw words, whose values NumPy guarantees (NEP 19).
    words = np.random.Philox(key=np.array([seed % _WORD, step], np.uint64), counter=_DRAWS)
    side = choices[int(words.random_raw()) * len(choices) // _WORD]
    return sides(cfg).index(side)
