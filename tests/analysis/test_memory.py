# SPDX-License-Identifier: Apache-2.0
"""Bytes by hand, over meshes that do not exist."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from vit_jax import sharding
from vit_jax.analysis import memory
from vit_jax.train import build as build_lib
from vit_jax.train.state import TrainState

B, D, F = 32, 8, 64
KERNEL = D * F * 4  # bytes of one kernel


def loss(params, frozen, batch):
    """A two-layer perceptron named after a block's, so that the sharding rules apply."""
    hidden = jnp.sin(batch["x"] @ params["fc1"]["kernel"])
    if frozen is not None:
        hidden = hidden + frozen
    return jnp.mean((hidden @ params["fc2"]["kernel"]) ** 2)


def descend(state, frozen, batch):
    """Take a step of plain gradient descent."""
    grads = jax.grad(loss)(state.params, frozen, batch)
    params = jax.tree.map(lambda p, g: p - g, state.params, grads)
    return dataclasses.replace(state, params=params), {}


def state(tx=None):
    params = {
        "fc1": {"kernel": jax.ShapeDtypeStruct((D, F), jnp.float32)},
        "fc2": {"kernel": jax.ShapeDtypeStruct((F, D), jnp.float32)},
    }
    opt_state = jax.eval_shape((tx or optax.adamw(1e-3)).init, params)
    return TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32),
        params=params,
        model_state={},
        opt_state=opt_state,
        ema=params,
        rng=jax.eval_shape(lambda: jax.random.key(0)),
    )


def sharded(state, mesh, num_devices):
    mesh = sharding.abstract_mesh(mesh, num_devices)
    return build_lib.placed(state, mesh), mesh


def batch(size=B):
    return {"x": jax.ShapeDtypeStruct((size, D), jnp.float32)}


def held(size, kernel=KERNEL):
    """What the backward pass holds where it holds most, of `size` examples.

    The gradients of the sine and of the second product, what the cosine is made anew of, and the
    gradient of the second kernel.
    """
    return (2 * size * F + size * D) * 4 + kernel


def test_one_device():
    m = memory.estimate(state(), descend, batch())
    assert m.params == m.ema == m.gradients == 2 * KERNEL
    assert m.optimizer == 2 * 2 * KERNEL + 4  # two moments and a step count
    assert m.batch == B * D * 4
    assert m.gradients + m.activations == held(B)
    assert m.checkpoint == m.params + m.optimizer + m.ema
    assert m.frozen == 0
    assert m.device_total == 2 * KERNEL * 4 + 4 + m.batch + held(B)


def test_pod_of_256_planned_here():
    placed, mesh = sharded(state(), sharding.MeshConfig(data=64, fsdp=4, tensor=1), 256)
    m = memory.estimate(placed, descend, batch(1024), batch_shards=sharding.batch_parts(mesh))
    assert m.params == m.gradients == 2 * KERNEL // 4
    assert m.optimizer == 2 * 2 * KERNEL // 4 + 4
    assert m.batch == 1024 // 256 * D * 4
    assert m.gradients + m.activations == held(1024 // 256, KERNEL // 4)
    assert m.checkpoint == 8 * KERNEL + 4  # parameters, two moments, moving average: in full


def test_frozen_parameters_and_no_average():
    no_ema = dataclasses.replace(state(), ema=None)
    frozen = jax.ShapeDtypeStruct((1, F), jnp.float32)
    m = memory.estimate(no_ema, descend, batch(), frozen=frozen)
    assert (m.frozen, m.ema) == (F * 4, 0)
    assert m.checkpoint == m.params + m.optimizer


def test_the_first_moment_in_bfloat16_takes_half():
    whole, half = (
        memory.estimate(state(optax.adamw(1e-3, mu_dtype=dtype)), descend, batch())
        for dtype in (None, jnp.bfloat16)
    )
    assert whole.optimizer - half.optimizer == KERNEL  # of two kernels' 2 * KERNEL
    assert whole.checkpoint - half.checkpoint == KERNEL


def test_prng_keys_count_by_their_data():
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    assert memory.device_bytes({"rng": key}) == 3 * 8
