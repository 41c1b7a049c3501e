# SPDX-License-Identifier: Apache-2.0
"""SAM (arXiv:2010.01412) around every optimizer: which gradient it steps by."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.optim.test_sam import CLOCK, CONSTANT, PLAIN, RHO, make_params, slope
from vit_jax.optim import OptimConfig, Optimizer, make_climb, make_optimizer


def run(cfg, params):
    """Return two updates of SAM, and those of the plain optimizer at the point it must climb to."""
    (sam, _), climb = make_optimizer(cfg, params, CLOCK), make_climb(cfg, params, CLOCK)
    plain, _ = make_optimizer(dataclasses.replace(cfg, sam_rho=0.0), params, CLOCK)

    @jax.jit
    def both(params):
        grads = slope(params)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        uphill = jax.tree.map(lambda p, g: p + RHO * g / norm, params, grads)
        got, want = [], []
        state, other = sam.init(params), plain.init(params)
        for step in range(2):
            there = jax.tree.map(jnp.add, params, climb(grads, step))
            u, state = sam.update(slope(there), state, params)
            v, other = plain.update(slope(uphill), other, params)
            got.append(u)
            want.append(v)
        return got, want

    return both(params)


@pytest.mark.parametrize("name", list(Optimizer))
def test_every_optimizer_steps_by_the_gradient_uphill(name):
    cfg = OptimConfig(**CONSTANT, name=name, sam_rho=RHO, weight_decay=0.1, clip_norm=1.0)
    got, want = run(cfg, make_params())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


def _head(tree):
    return tree["head"]["kernel"]


def _layer(i):
    return lambda tree: tree["blocks"]["mlp"]["fc1"]["kernel"][i]


@pytest.mark.parametrize(
    "freeze, still, moving",
    [("head", _head, _layer(1)), ("blocks/1/", _layer(1), _layer(2))],
    ids=["whole", "a layer"],
)
def test_what_is_frozen_neither_climbs_nor_moves(freeze, still, moving):
    cfg = OptimConfig(**PLAIN, sam_rho=RHO, freeze=freeze)
    params = make_params()
    tx, _ = make_optimizer(cfg, params, CLOCK)
    up = make_climb(cfg, params, CLOCK)(slope(params), 0)
    uphill = jax.tree.map(jnp.add, params, up)
    updates, _ = tx.update(slope(uphill), tx.init(params), params)
    np.testing.assert_array_equal(still(uphill), still(params))
    np.testing.assert_array_equal(still(updates), 0)
    climb = jax.tree.map(lambda a, b: np.sum((a - b) ** 2), uphill, params)
    assert sum(jax.tree.leaves(climb)) == pytest.approx(RHO**2, rel=1e-5)
    np.testing.assert_allclose(moving(updates), -0.1 * moving(slope(uphill)), rtol=1e-5)
