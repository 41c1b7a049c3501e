# SPDX-License-Identifier: Apache-2.0
"""Moments that a step without finite numbers leaves alone, and what of a step needs memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, make_optimizer, moments
from vit_jax.settings.durations import Clock

CLOCK = Clock(batch_size=8, num_examples=80, total_steps=100)
SIDE = 64


def make_params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(2, SIDE, SIDE)).astype(np.float32)
    return {"blocks": {"fc1": {"kernel": jnp.asarray(kernel)}}}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda dtype: moments.scale_by_adam(0.9, 0.99, 1e-6, dtype),
            lambda dtype: optax.scale_by_adam(0.9, 0.99, 1e-6, mu_dtype=dtype),
        ),
        (
            lambda dtype: moments.momentum(0.9, True, dtype),
            lambda dtype: optax.trace(0.9, True, accumulator_dtype=dtype),
        ),
        (
            lambda dtype: moments.momentum(0.9, False, dtype),
            lambda dtype: optax.trace(0.9, False, accumulator_dtype=dtype),
        ),
    ],
)
def test_equals_optax_bitwise(ours: Any, theirs: Any, dtype: str) -> None:
    params = make_params()
    ours, theirs = ours(jnp.dtype(dtype)), theirs(jnp.dtype(dtype))
    mine, other = ours.init(params), theirs.init(params)
    for i in range(3):
        grads = jax.tree.map(lambda p, i=i: jnp.sin(p + i), params)
        u, mine = ours.update(grads, mine, params, is_valid=True)
        v, other = theirs.update(grads, other, params)
        jax.tree.map(np.testing.assert_array_equal, (u, mine), (v, other))
        assert jax.tree.structure(mine) == jax.tree.structure(other)


@pytest.mark.parametrize("dtype", list(MomentDtype))
@pytest.mark.parametrize("name", list(Optimizer))
def test_a_step_that_does_not_count_changes_counters_only(name: Any, dtype: MomentDtype) -> None:
    params = make_params()
    cfg = OptimConfig(name=name, mu_dtype=dtype, weight_decay_end=0.1)
    tx, _ = make_optimizer(cfg, params, CLOCK)
    tx = optax.with_extra_args_support(tx)
    update = jax.jit(
        lambda g, s, finite: tx.update(g, s, params, is_valid=finite)[1],
    )
    before = update(jax.tree.map(jnp.sin, params), tx.init(params), True)
    after = update(jax.tree.map(lambda p: p * jnp.nan, params), before, False)

    def compare(old: jax.Array, new: jax.Array) -> None:
        counts = jnp.issubdtype(old.dtype, jnp.integer)
        np.testing.assert_array_equal(new, old + 1 if counts else old)

    jax.tree.map(compare, before, after)
