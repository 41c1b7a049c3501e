# SPDX-License-Identifier: Apache-2.0
"""Every family through the one train step: in place, every layout, remat and bfloat16."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.integration.train.test_donation import compile_in_place
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig, MixConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType, Remat
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer
from vit_jax.train import build as build_lib

STEPS, BATCH = 2, 16
# All axes at once; test_step.py has the ViT on two of them alone.
MIXED = MeshConfig(data=2, fsdp=2, tensor=2)
# test_step.py draws the ViT's initial values on every mesh; of the others, these draw theirs on
# theirs: convolutions and windows.
BORN_ON_THE_MESH = ("regnet", "swin")
FULL = OptimConfig(lr=1e-3, weight_decay=0.1, mu_dtype=MomentDtype.BFLOAT16)
PLAIN = OptimConfig(name=Optimizer.SGD, momentum=0.0, lr=0.1)
# An optimizer does to an array of one what it does to another's: these compile the smallest.
PLAINLY = ("swin", "resnet", "bit", "hybrid", "cait", "convit", "mixer", "convnext")


def config(family: str, mesh: MeshConfig | None = None, **fields: Any) -> Config:
    # Randomness is on: it must not depend on the layout either.
    names = {field.name for field in dataclasses.fields(TINY[family])}
    if "drop_path_rate" in names:
        fields = {"drop_path_rate": 0.2, **fields}
    model = dataclasses.replace(TINY[family], **fields)
    return Config(
        model=model,
        data=DataConfig(batch_size=BATCH, mix=MixConfig(mixup_alpha=0.2)),
        optim=PLAIN if family in PLAINLY else FULL,
        duration=f"{STEPS} steps",
        mesh=mesh or MeshConfig(),
        ema_decay=0.0 if family in PLAINLY else 0.9,
    )


def train(cfg: Config, devices: int = 8, start: Any = None) -> tuple[list[float], Any, Any]:
    """Train from `start`, or else as the config says; returns losses, last state, first state."""
    rng = np.random.default_rng(0)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:devices])
    parts = build_lib.build(cfg, num_examples=1000)
    if start is None:
        start = jax.device_get(build_lib.init_state(cfg, parts, mesh))
    # The step takes its memory, and of all that `start` holds only the key is on a device.
    state = dataclasses.replace(start, rng=jax.random.clone(start.rng))
    state = jax.device_put(state, build_lib.shardings(parts, mesh), may_alias=False)
    step, losses = compile_in_place(cfg, parts, mesh), []
    with jax.set_mesh(mesh):
        for _ in range(STEPS):
            shape = (BATCH, *models.input_shape(cfg.model))
            batch = {
                "image": rng.integers(0, 256, shape, np.uint8),
                "label": rng.integers(0, cfg.model.num_classes, BATCH, np.int32),
            }
            batch = sharding.global_batch(batch, mesh, batch_size=BATCH)
            state, metrics = step(state, {}, batch)
            losses += [float(metrics["loss"]), float(metrics["grad_norm"])]
    return losses, jax.device_get(state), start


@functools.cache
def on_one_device(family: str) -> tuple[list[float], Any, Any]:
    return train(config(family), devices=1)


@pytest.fixture(scope="module", params=TINY)
def family(request: pytest.FixtureRequest) -> str:
    """Name a family; its tests come one after the other, and share `on_one_device`."""
    return request.param


# Both at once, as large runs have them: each alone is test_step.py's, on the ViT.
@pytest.mark.slow
def test_a_mesh_of_all_axes_with_remat_computes_the_same(family: str) -> None:
    expected, alone, start = on_one_device(family)
    if family in BORN_ON_THE_MESH:
        start = None
    losses, state, _ = train(config(family, MIXED, remat=Remat.FULL), start=start)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    # BatchNorm's statistics are the global batch's, wherever its examples are.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        state.model_state,
        alone.model_state,
    )


# By the smallest optimizer: what follows the gradient is float32, as above.
@pytest.mark.slow
def test_bfloat16_changes_little(family: str) -> None:
    expected, _, start = on_one_device(family)
    cfg = config(family, dtype=DType.BFLOAT16)
    cfg.optim, cfg.ema_decay = OptimConfig(name=Optimizer.SGD, momentum=0.0, lr=1e-3), 0.0
    opt_state = build_lib.build(cfg, num_examples=1000).abstract.opt_state
    opt_state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), opt_state)
    start = dataclasses.replace(start, opt_state=opt_state, ema=None)
    losses, state, _ = train(cfg, 1, start)
    assert losses[0] != expected[0]
    np.testing.assert_allclose(losses[0], expected[0], atol=5e-2)
    np.testing.assert_allclose(losses[1], expected[1], rtol=0.1)  # the gradient's norm
    assert np.isfinite(losses).all()
    kept = (state.params, models.abstract(cfg.model))
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {np.dtype(np.float32)}
