# SPDX-License-Identifier: Apache-2.0
"""Measures of attention and of first layers against their definitions."""

import jax.numpy as jnp
import numpy as np

from vit_jax.visual import attention


def test_rollout_follows_tokens_through_layers():
    # Layer 0 copies token 0 into token 1, layer 1 copies token 1 into token 2.
    first, second = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    first[1], second[2] = (1, 0, 0), (0, 1, 0)
    weights = jnp.asarray(np.stack([first, second])[:, None, None])
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]]
    np.testing.assert_allclose(attention.rollout(weights)[0], expected)
    before = attention.rollout(weights[:1])
    np.testing.assert_allclose(attention.rollout(weights[1:], before)[0], expected)
    grown = attention.prepend_token(before)[0]
    np.testing.assert_allclose(grown, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]])
