# SPDX-License-Identifier: Apache-2.0
"""The step: the same losses on every layout, accumulation, EMA, and no harm from NaN."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.train.test_step import _batches, tiny
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.optim import OptimConfig
from vit_jax.train import build as build_lib
from vit_jax.train.state import TrainState


def _run(cfg: Config, batches: list[dict[str, np.ndarray]], devices: int = 8):
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:devices])
    parts = build_lib.build(cfg, num_examples=1000)
    state = build_lib.init_state(cfg, parts, mesh)
    start = jax.device_get(state.params)
    step, losses, norms = build_lib.compile_steps(parts, mesh)[0], [], []
    with jax.set_mesh(mesh):
        for batch in batches:
            batch = sharding.global_batch(batch, mesh, batch_size=16)
            state, metrics = step(state, {}, batch)
            losses.append(float(metrics["loss"]))
            norms.append(float(metrics["grad_norm"]))
    return start, losses, norms, state


@pytest.fixture(scope="module")
def one_device():
    return _run(tiny(), _batches(), devices=1)


@pytest.mark.parametrize(
    "mesh, unroll",
    [
        (MeshConfig(), 1),
        (MeshConfig(data=1, fsdp=8), 1),
        (MeshConfig(data=2, fsdp=2, tensor=2), 0),
    ],
    ids=["data", "fsdp", "all axes and unrolled"],
)
def test_losses_do_not_depend_on_the_layout(one_device, mesh: MeshConfig, unroll: int) -> None:
    cfg = tiny(mesh=mesh)
    cfg.model = dataclasses.replace(cfg.model, scan_unroll=unroll)
    start, losses, norms, _ = _run(cfg, _batches())
    jax.tree.map(np.testing.assert_array_equal, start, one_device[0])
    np.testing.assert_allclose(losses, one_device[1], atol=1e-5, rtol=0)
    np.testing.assert_allclose(norms, one_device[2], atol=1e-4, rtol=0)


def test_losses_do_not_depend_on_accumulation() -> None:
    # Without dropout, whose masks are drawn per micro-batch.
    cfg = tiny()
    cfg.model = dataclasses.replace(cfg.model, dropout_rate=0.0, drop_path_rate=0.0)
    _, whole, _, _ = _run(cfg, _batches(), devices=2)
    cfg.accum_steps = 4
    _, split, _, _ = _run(cfg, _batches(), devices=2)
    np.testing.assert_allclose(split, whole, atol=1e-5, rtol=0)


# With the whole block again, tests/integration/train/test_families.py; and bfloat16.
def test_remat_and_scan_change_nothing(one_device) -> None:
    cfg = tiny()
    cfg.model = dataclasses.replace(cfg.model, remat=models.Remat.DOTS, scan_unroll=0)
    _, losses, _, _ = _run(cfg, _batches(), devices=1)
    np.testing.assert_allclose(losses, one_device[1], atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def averaged():
    """Compile a step with a moving average; returns it, on one batch, and a maker of states."""
    cfg = tiny(ema_decay=0.75)
    cfg.duration, cfg.optim = "30 steps", OptimConfig(lr=1e-2)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    parts = build_lib.build(cfg, num_examples=1000)
    step = build_lib.compile_steps(parts, mesh)[0]
    first = build_lib.init_state(cfg, parts, mesh)

    def take(state: TrainState):
        with jax.set_mesh(mesh):
            return step(state, {}, sharding.global_batch(_batches(1)[0], mesh, batch_size=16))

    return take, lambda: jax.device_put(first, may_alias=False)


def test_training_learns(averaged) -> None:
    take, begin = averaged
    state, losses = begin(), []
    for _ in range(30):
        state, metrics = take(state)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.6 * losses[0]


def test_ema_follows_the_parameters(averaged) -> None:
    take, begin = averaged
    state = begin()
    start = jax.device_get(state.params)
    state, _ = take(state)
    name = ("head", "kernel")
    before, after, ema = (t[name[0]][name[1]] for t in (start, state.params, state.ema["params"]))
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(ema, 0.75 * before + 0.25 * np.asarray(after), atol=1e-7)


def test_ema_follows_less_and_less_where_the_decay_has_an_end() -> None:
    cfg = tiny(ema_decay=0.5, ema_decay_end=1.0)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    parts = build_lib.build(cfg, num_examples=1000)
    state = build_lib.init_state(cfg, parts, mesh)
    step, batch = build_lib.compile_steps(parts, mesh)[0], _batches(1)[0]
    for done in range(2):  # of 5 steps: (1 + cos(pi / 5)) / 2 of the way from the end
        share = (1 + np.cos(np.pi * done / 5)) / 2
        before = np.asarray(state.ema["params"]["head"]["kernel"])
        with jax.set_mesh(mesh):
            state, _ = step(state, {}, sharding.global_batch(batch, mesh, batch_size=16))
        after, decay = np.asarray(state.params["head"]["kernel"]), 1 - 0.5 * share
        ema = state.ema["params"]["head"]["kernel"]
        np.testing.assert_allclose(ema, decay * before + (1 - decay) * after, atol=1e-8)


def test_a_step_that_is_not_finite_changes_nothing_but_the_counter(averaged) -> None:
    # A finite float32 loss cannot come from these parameters: the first LayerNorm overflows.
    take, begin = averaged
    state = begin()
    state.params["head"]["kernel"] = jnp.full_like(state.params["head"]["kernel"], jnp.nan)
    before = jax.device_get((state.params, state.opt_state, state.ema))
    state, metrics = take(state)
    assert float(metrics["nonfinite"]) == 1
    assert int(state.step) == 1
    after = (state.params, state.opt_state, state.ema)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        if np.issubdtype(old.dtype, np.integer):  # the schedule goes on with the steps
            assert new == old + 1
        else:
            np.testing.assert_array_equal(old, new)


def test_state_is_donated(averaged) -> None:
    take, begin = averaged
    state = begin()
    old = state.params["head"]["kernel"]
    take(state)
    assert old.is_deleted()
