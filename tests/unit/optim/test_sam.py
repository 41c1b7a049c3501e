# SPDX-License-Identifier: Apache-2.0
"""SAM (arXiv:2010.01412) around every optimizer: which gradient it steps by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.optim import OptimConfig, Optimizer, Schedule, make_optimizer, validate
from vit_jax.settings.durations import Clock

CLOCK = Clock(batch_size=8, num_examples=80, total_steps=100)
RHO = 0.3
CONSTANT = {"schedule": Schedule.CONSTANT, "lr": 0.1}
PLAIN = {**CONSTANT, "name": Optimizer.SGD, "momentum": 0.0, "clip_norm": 0.0}


def make_params():
    rng = np.random.default_rng(0)
    shapes = {"blocks": {"mlp": {"fc1": {"kernel": (3, 4, 4)}}}, "head": {"kernel": (4, 5)}}
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def slope(params, _=0):
    """Return the gradient of sum(p ** 4)."""
    return jax.tree.map(lambda p: 4 * p**3, params)


def test_a_gradient_of_zero_stays_where_it_is():
    params = jax.tree.map(jnp.zeros_like, make_params())
    tx, _ = make_optimizer(OptimConfig(**PLAIN, sam_rho=RHO), params, CLOCK)
    updates, _ = tx.update(slope(params), tx.init(params), params, grad_fn=slope)
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_array_equal(leaf, 0)


def test_radius_out_of_range():
    with pytest.raises(UserError, match=r"optim\.sam_rho=-0\.1 must be at least 0"):
        validate(OptimConfig(sam_rho=-0.1))
