# SPDX-License-Identifier: Apache-2.0
"""The share that is dropped, the mean that stays, and what each number's fate depends on."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.layers.drop import dropout

KEY = jax.random.key(0)


def test_neighbours_fall_apart_from_each_other() -> None:
    """Two numbers share a word of random bits: none of them tells of the other."""
    kept = np.asarray(dropout(jnp.ones((20_000, 4)), 0.3, KEY)) != 0
    shared = np.corrcoef(kept.T) - np.eye(4)
    assert np.abs(shared).max() < 5 / np.sqrt(20_000)
