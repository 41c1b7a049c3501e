# SPDX-License-Identifier: Apache-2.0
"""SAM (arXiv:2010.01412) around every optimizer: which gradient it steps by."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.refusals import refused_by
from vit_jax import trees
from vit_jax.optim import OptimConfig, Optimizer, Schedule, make_climb, make_optimizer
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


def slope(params):
    """Return the gradient of sum(p ** 4)."""
    return jax.tree.map(lambda p: 4 * p**3, params)


def test_a_gradient_of_zero_stays_where_it_is():
    params = jax.tree.map(jnp.zeros_like, make_params())
    climb = make_climb(OptimConfig(**PLAIN, sam_rho=RHO), params, CLOCK)
    for leaf in jax.tree.leaves(climb(slope(params), 0)):
        np.testing.assert_array_equal(leaf, 0)


def test_without_a_radius_nothing_climbs():
    assert make_climb(OptimConfig(**PLAIN), make_params(), CLOCK) is None


def test_the_state_is_the_one_of_optax_which_older_checkpoints_hold():
    params = make_params()
    cfg = OptimConfig(**{**PLAIN, "momentum": 0.9}, weight_decay=0.1, sam_rho=RHO)
    state = make_optimizer(cfg, params, CLOCK)[0].init(params)
    assert isinstance(state, optax.contrib.SAMState)
    assert [name for name, _ in trees.named_leaves(state)] == [
        "steps_since_sync",
        "opt_state/sgd/trace/blocks/mlp/fc1/kernel",
        "opt_state/sgd/trace/head/kernel",
        "opt_state/lr/count",
    ]
    _, after = make_optimizer(cfg, params, CLOCK)[0].update(params, state, params)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert int(after.opt_state["lr"].count) == 1


def test_radius_out_of_range():
    with refused_by("settings.fields.check_range", "optim.sam_rho"):
        OptimConfig(sam_rho=-0.1).check()
