# SPDX-License-Identifier: Apache-2.0
"""Steps without labels: the same on every mesh and in micro-batches, near in half precision."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
import pytest

from configs import unlabelled_digits
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType
from vit_jax.models.base import Remat
from vit_jax.objectives import DinoConfig, GramConfig, IJepaConfig, LeJepaConfig, MaeConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import build as build_lib

BATCH, STEPS = 16, 2
SIZES = {"dim": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}


def config(run: str) -> Config:
    run, _, anchored = run.partition("+")
    cfg = unlabelled_digits.get_config(run)
    cfg.model = dataclasses.replace(cfg.model, **SIZES, drop_path_rate=0.0)
    cfg.data.batch_size, cfg.duration = BATCH, "10 steps"
    # Its steps are the gradients, not their signs.
    cfg.optim = OptimConfig(name=Optimizer.SGD, lr=0.01, momentum=0.0, clip_norm=0.0)
    if isinstance(cfg.objective, MaeConfig):
        cfg.objective.decoder_dim, cfg.objective.decoder_depth = 16, 1
    if isinstance(cfg.objective, DinoConfig):
        for head in (cfg.objective.head, cfg.objective.patch_head):
            head.prototypes, head.hidden_dim, head.bottleneck_dim = 16, 16, 8
        # KoLeo magnifies the rounding of features as close as those of an untrained network; on
        # 8 devices its own test and test_dino.py's compare it.
        cfg.objective.spread_weight = 0.0
        if anchored:  # in the second step, by the teacher after the first
            side = 2 * cfg.model.image_size[0]
            cfg.objective.gram = GramConfig(weight=1.0, start="1 steps", size=(side, side))
    if isinstance(cfg.objective, LeJepaConfig):
        cfg.objective.hidden_dim, cfg.objective.dim, cfg.objective.directions = 16, 8, 8
        # Crops of two sizes, which the recipe does not have.
        cfg.objective.large_crops = cfg.objective.small_crops = 2
        cfg.objective.small_size = (16, 16)
        cfg.model = dataclasses.replace(cfg.model, dynamic_image_size=True)
    if isinstance(cfg.objective, IJepaConfig):
        cfg.objective.predictor_dim, cfg.objective.predictor_depth = 16, 1
    return cfg


Run = tuple[list[dict[str, float]], list[Any]]


def train(cfg: Config, mesh: MeshConfig, devices: int) -> Run:
    """Return the metrics of each step, and the states after them."""
    parts = build_lib.build(cfg, 1000)
    on = sharding.make_mesh(mesh, jax.devices()[:devices])
    rng = np.random.default_rng(0)
    with jax.set_mesh(on):
        state = build_lib.init_state(cfg, parts, on)
        seen, states = [], []
        step = build_lib.compile_steps(parts, on)[0]
        for _ in range(STEPS):
            batch = {
                name: jax.device_put(
                    rng.integers(0, 256, (BATCH, *view.shape), np.uint8),
                    sharding.batch_sharding(on),
                )
                for name, view in parts.objective.views.items()
            }
            state, metrics = step(state, {}, batch)
            seen.append({name: float(value) for name, value in metrics.items()})
            kept = {"params": state.params, "ema": state.ema, "own": state.objective}
            states.append(jax.device_get(kept))
    return seen, states


@functools.cache
def alone(run: str) -> Run:
    return train(config(run), MeshConfig(data=1), 1)


def assert_same(found: Run, expected: Run) -> None:
    for one, other in zip(found[0], expected[0], strict=True):
        assert one == pytest.approx(other, rel=2e-4, abs=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), found[1], expected[1])


@pytest.mark.parametrize("run", ["mae", "dinov2", "dinov2+gram", "lejepa", "ijepa"])
def test_eight_devices_train_as_one_does(run: str) -> None:
    cfg = config(run)
    if run == "dinov2":
        assert {cfg.objective.balance, cfg.objective.patch_weight} == {"sinkhorn", 1.0}
    found = train(cfg, MeshConfig(data=2, fsdp=2, tensor=2), 8)
    assert_same(found, alone(run))
    if run == "dinov2+gram":
        assert [metrics["gram_loss"] > 0 for metrics in found[0]] == [False, True]
        copied, before = found[1][1]["own"]["gram"], found[1][0]["ema"]["params"]
        jax.tree.map(np.testing.assert_array_equal, copied, {n: before[n] for n in copied})


@pytest.mark.parametrize("run", ["mpp", "mae"])
def test_micro_batches_train_as_the_whole(run: str) -> None:
    cfg = config(run)
    cfg.accum_steps = 4
    assert_same(train(cfg, MeshConfig(data=1), 1), alone(run))


@pytest.mark.parametrize("run", ["mae", "dinov2"])
def test_half_precision_with_recomputed_blocks_is_near(run: str) -> None:
    cfg = config(run)
    cfg.model = dataclasses.replace(cfg.model, dtype=DType.BFLOAT16, remat=Remat.FULL)
    found, _ = train(cfg, MeshConfig(data=1), 1)
    expected, _ = alone(run)
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.03)
        assert one["nonfinite"] == 0


def test_the_teacher_is_the_average_that_its_schedule_makes() -> None:
    first, second = alone("dinov2")[1]
    start = jax.device_get(
        jax.jit(build_lib.build(config("dinov2"), 1000).init)(jax.random.key(0)).params
    )
    # Momentum 0.96 to 1 by half a cosine over the ten steps of the run.
    decays = [1.0 - 0.04 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(STEPS)]

    def follow(start: Any, one: Any, two: Any, average: Any) -> None:
        expected = decays[0] * start + (1 - decays[0]) * one
        expected = decays[1] * expected + (1 - decays[1]) * two
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)  # 1 - 0.96 in float32

    jax.tree.map(follow, start, first["params"], second["params"], second["ema"]["params"])
    assert np.any(second["ema"]["params"]["cls_token"] != start["cls_token"])
