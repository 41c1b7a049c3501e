# SPDX-License-Identifier: Apache-2.0
"""Published weights in and out: every file becomes this package's variables, strictly."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import trees
from vit_jax.models import ModelConfig
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.export import to_timm
from vit_jax.weights.load import load, read
from vit_jax.weights.names import forms, timm
from vit_jax.weights.readers import repository


def from_timm(state: Mapping[str, np.ndarray], cfg: ModelConfig) -> dict[str, Any]:
    """Convert a timm state_dict of numpy arrays to the variables of `cfg`'s model.

    Raises UserError: keys missing, unused or of another shape; values that are not finite.
    """
    entries = timm.entries(cfg)
    source = forms.adapted(in_memory(state), entries)
    return trees.nest(fill(entries, source, is_ignored=timm.is_ignored))
