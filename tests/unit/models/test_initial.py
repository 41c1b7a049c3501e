# SPDX-License-Identifier: Apache-2.0
"""Arrays of one distribution share a program, whatever their shapes and keys."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax.models import initial


def made(key: jax.Array) -> dict[str, jax.Array]:
    """Draw as initialisers do, and in three ways that no piece can follow."""
    one, two, three, four = jax.random.split(key, 4)
    stacked = jax.lax.scan(
        lambda _, key: (None, {"x": 0.02 * jax.random.normal(key, (5,)), "y": jnp.ones((2, 3))}),
        None,
        jax.random.split(two, 3),
    )[1]
    return {
        "normal": 0.02 * jax.random.normal(one, (70, 1001)),
        "small": 0.02 * jax.random.normal(jax.random.fold_in(one, 7), (3,)),
        "truncated": jax.random.truncated_normal(two, -2, 2, (9, 4)) * (0.3 / 0.87962566),
        "uniform": jax.random.uniform(three, (4, 5, 6), jnp.float32, -0.1, 0.1),
        "stacked": stacked["x"],
        "doubled": 2.0 * stacked["x"],
        "ones": stacked["y"],
        "zeros": jnp.zeros((4,), jnp.int32),
        "turned": jax.random.normal(four, (6, 5)).T,
        "of two": jax.random.normal(one, (8,)) + jax.random.normal(two, (8,)),
        "repeated": jnp.broadcast_to(jax.random.normal(four, (1, 8)), (3, 8)),
        "order": jax.random.permutation(four, 9),
    }


def test_shapes_and_keys_share_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial, "_programs", {})
    for seed in (0, 1):
        initial.drawn(
            lambda key: {
                str(n): 0.02 * jax.random.normal(jax.random.fold_in(key, n), (n, 3))
                for n in range(1, 9)
            },
            jax.random.key(seed),
        )
    assert len(initial._programs) == 1  # for sixteen arrays
