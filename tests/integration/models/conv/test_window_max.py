# SPDX-License-Identifier: Apache-2.0
"""Max-pool on windows against XLA's own: values and gradients."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.conv.window_max import Pads, window_max

# Odd and even sides, uneven borders.
CASES = [
    ((7, 10), 1, ((1, 1), (1, 1))),
    ((7, 10), 2, ((1, 1), (1, 1))),
    ((8, 9), 2, ((0, 1), (1, 1))),
    ((2, 3), 1, ((1, 1), (1, 1))),
]


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(
    fn: Callable[..., jax.Array], dy: jax.Array, *args: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Return fn(*args) and, for the gradient dy of it, that of every argument."""
    y, vjp = jax.vjp(fn, *args)
    return y, vjp(dy)


@pytest.mark.parametrize("side, stride, pads", CASES)
def test_max_pool_gives_the_first_of_equals_the_gradient(
    side: tuple[int, int], stride: int, pads: Pads
) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-2, 3, size=(2, *side, 3)), jnp.float32)  # ties everywhere

    def plain(x: jax.Array) -> jax.Array:
        window, strides = (1, 3, 3, 1), (1, stride, stride, 1)
        borders = ((0, 0), *pads, (0, 0))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, borders)

    dy = jnp.asarray(rng.integers(1, 9, size=jax.eval_shape(plain, x).shape), jnp.float32)
    expected = with_gradients(plain, dy, x)
    found = with_gradients(lambda x: window_max(x, 3, stride, pads), dy, x)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1][0], expected[1][0])
