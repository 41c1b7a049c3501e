# SPDX-License-Identifier: Apache-2.0
"""The share that is dropped, the mean that stays, and what each number's fate depends on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.layers.test_drop import KEY
from vit_jax.models.layers.drop import Dropout, dropout


@pytest.mark.parametrize("rate", [1e-6, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("width", [511, 512])
def test_the_share_and_the_scale(rate: float, width: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 256, width)), jnp.float32)
    y = np.asarray(dropout(x, rate, KEY))
    dropped = (y == 0).mean()
    assert abs(dropped - rate) < 4 * np.sqrt(rate * (1 - rate) / x.size) + 2**-16
    np.testing.assert_allclose(y[y != 0], np.asarray(x)[y != 0] / (1 - rate), rtol=2e-4)


def test_the_gradient_passes_where_the_number_did() -> None:
    x = jnp.full((16, 33), 3.0)
    y, pull = jax.vjp(lambda x: dropout(x, 0.25, KEY), x)
    np.testing.assert_array_equal(pull(jnp.ones_like(x))[0] * 3, y)


def test_keeps_the_dtype_and_leaves_evaluation_alone() -> None:
    x = jnp.ones((4, 8), jnp.bfloat16)
    assert dropout(x, 0.5, KEY).dtype == jnp.bfloat16
    for layer in (Dropout(0.5, deterministic=True), Dropout(0.0, deterministic=False)):
        np.testing.assert_array_equal(layer.apply({}, x), x)
    other = Dropout(0.5, deterministic=False).apply({}, x, rngs={"dropout": KEY})
    assert (np.asarray(other) == 0).any()
