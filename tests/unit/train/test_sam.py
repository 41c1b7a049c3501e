# SPDX-License-Identifier: Apache-2.0
"""SAM in the step: two gradients on one batch, against the same written out."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.objectives import Aux
from vit_jax.optim import OptimConfig, Optimizer, Schedule, make_climb, make_optimizer
from vit_jax.settings.durations import Clock
from vit_jax.train.state import make_init
from vit_jax.train.step import make_train_step

LR, RHO = 0.5, 0.2
DATA = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Cosh:
    """mean log cosh (x . w) on inputs that dropout thins out; NaN where w[0] goes beyond `cliff`.

    Its model state says where its parameters were.
    """

    def __init__(self, dropout: bool = False, cliff: float = 100.0) -> None:
        self.dropout, self.cliff = dropout, cliff

    def prepare(self, batch, rng):
        return batch

    def bounded(self, params):
        return params

    def loss(self, params, ctx, batch, rng):
        x, w = batch["x"], params["w"]
        if self.dropout:
            x = x * jax.random.bernoulli(rng, 0.5, x.shape)
        loss = jnp.log(jnp.cosh(x @ w)).mean() + 0 * jnp.sqrt(self.cliff - w[0])
        return loss, Aux({"loss": loss}, {"mean": w}, ctx.objective)


def _step(objective, rho=RHO, accum_steps=1, **more):
    """Return the state before and after a step, and its metrics; `more` parameters are frozen."""
    params = {"w": jnp.asarray([1.0, -0.5, 0.3]), **more}
    cfg = OptimConfig(
        name=Optimizer.SGD,
        momentum=0.0,
        lr=LR,
        schedule=Schedule.CONSTANT,
        clip_norm=0.0,
        sam_rho=rho,
        freeze="|".join(more),
    )
    clock = Clock(batch_size=8, num_examples=8, total_steps=9)
    (tx, schedule), climb = make_optimizer(cfg, params, clock), make_climb(cfg, params, clock)
    init = make_init(lambda _: (params, {"mean": jnp.zeros(3)}), tx, with_ema=True)
    more = {"accum_steps": accum_steps, "ema_decay": 0.5, "climb": climb}
    step = make_train_step(objective, tx, schedule, **more)
    state = init(jax.random.key(0))
    after, metrics = jax.jit(step)(state, {}, {"x": jnp.asarray(DATA)})
    return state, after, metrics


def _gradient(w, masks=1.0):
    x = DATA * masks
    return (np.tanh(x @ w)[:, None] * x).mean(axis=0)


def test_without_sam_there_is_one_pass() -> None:
    before, after, _ = _step(Cosh(cliff=1.01), rho=0.0)
    w = np.asarray(before.params["w"])
    np.testing.assert_allclose(after.params["w"], w - LR * _gradient(w), rtol=1e-5)


def test_what_is_frozen_neither_climbs_nor_counts() -> None:
    class Slope(Cosh):
        def loss(self, params, ctx, batch, rng):
            loss, aux = super().loss(params, ctx, batch, rng)
            return loss + 3 * params["bias"] * params["w"].sum(), aux

    bias = jnp.asarray(0.1)
    before, after, _ = _step(Slope(), bias=bias)
    assert after.params["bias"] == bias
    w = np.asarray(before.params["w"])
    there = _gradient(w) + 0.3
    up = w + RHO * there / np.linalg.norm(there)
    np.testing.assert_allclose(after.params["w"], w - LR * (_gradient(up) + 0.3), rtol=1e-5)
