# SPDX-License-Identifier: Apache-2.0
"""Published weights in and out: every file becomes this package's variables, strictly."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax import trees
from vit_jax.models import ModelConfig

if TYPE_CHECKING:
    from vit_jax.weights.export import to_timm
    from vit_jax.weights.loading import load, read


def from_timm(state: Mapping[str, np.ndarray], cfg: ModelConfig) -> dict[str, Any]:
    """Convert a timm state_dict of numpy arrays to the variables of `cfg`'s model.

    Raises UserError: keys missing, unused or of another shape; values that are not finite.
    """
    from vit_jax.weights.apply import fill, in_memory
    from vit_jax.weights.names import forms, timm

    entries = timm.entries(cfg)
    source = forms.adapted(in_memory(state), entries)
    return trees.nest(fill(entries, source, is_ignored=timm.is_ignored))


def __getattr__(name: str) -> Any:
    # Late: a run that starts from random parameters reads none of the formats.
    if name in ("load", "read"):
        from vit_jax.weights import loading

        return getattr(loading, name)
    if name == "to_timm":
        from vit_jax.weights.export import to_timm

        return to_timm
    raise AttributeError(f"vit_jax.weights has no {name!r}")
