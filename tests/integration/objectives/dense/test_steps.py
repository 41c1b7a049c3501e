# SPDX-License-Identifier: Apache-2.0
"""Steps of segmentation: the same on every mesh and in micro-batches; what is frozen stays."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from vit_jax import models
from vit_jax.config.tree import Config, fitted
from vit_jax.data import DataConfig
from vit_jax.data.targets import LABEL_MAP, SEGMENT_CLASS, SEGMENTS, TargetKind
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models.layers.init import Init
from vit_jax.objectives import EomtConfig, MaskLossConfig, Objective, SegmentConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import build as build_lib

BATCH, STEPS, SIDE, CLASSES = 8, 2, 16, 3


def config(run: str) -> Config:
    sizes = {"dim": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32, "patch": (4, 4)}
    small = {"image_size": (SIDE, SIDE), "num_classes": 0, "init": Init.TIMM}
    cfg = Config(model=models.variant("vit_mu8", **sizes, **small), duration="6 steps")
    cfg.data = DataConfig(batch_size=BATCH)
    # Its steps are the gradients, not their signs.
    cfg.optim = OptimConfig(name=Optimizer.SGD, lr=0.01, momentum=0.0, clip_norm=0.0)
    if run.startswith("linear"):
        cfg.objective = SegmentConfig(num_classes=CLASSES, frozen=run == "linear, frozen")
        return cfg
    loss = MaskLossConfig(points=32)
    kind = TargetKind.SEGMENTS if run == "instances" else TargetKind.PIXELS
    cfg.objective = EomtConfig(num_classes=CLASSES, queries=4, blocks=1, loss=loss, target=kind)
    return cfg


def batch(cfg: Config, rng: np.random.Generator) -> dict[str, np.ndarray]:
    found = {"image": rng.integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8)}
    if cfg.objective.pixel_target == TargetKind.PIXELS:
        blocks = rng.integers(-1, CLASSES, (BATCH, 2, 2))
        return {**found, LABEL_MAP: np.kron(blocks, np.ones((1, 8, 8))).astype(np.int16)}
    masks = np.kron(rng.integers(0, 2, (BATCH, 3, 2, 2)), np.ones((1, 1, 8, 8))).astype(bool)
    labels = rng.integers(-1, CLASSES, (BATCH, 3)).astype(np.int32)
    return {**found, SEGMENTS: np.packbits(masks, axis=-1), SEGMENT_CLASS: labels}


Run = tuple[list[dict[str, float]], list[Any]]


def train(cfg: Config, mesh: MeshConfig, devices: int) -> Run:
    """Return the metrics of each step, and the states after them."""
    parts = build_lib.build(cfg, 1000)
    on = sharding.make_mesh(mesh, jax.devices()[:devices])
    rng, where = np.random.default_rng(0), sharding.batch_sharding(on)
    with jax.set_mesh(on):
        state = build_lib.init_state(cfg, parts, on)
        seen, states = [], [jax.device_get((state.params, state.model_state))]
        step = build_lib.compile_steps(parts, on)[0]
        for _ in range(STEPS):
            state, metrics = step(state, {}, jax.device_put(batch(cfg, rng), where))
            seen.append({name: float(value) for name, value in metrics.items()})
            states.append(jax.device_get((state.params, state.model_state)))
    return seen, states


@functools.cache
def alone(run: str) -> Run:
    return train(config(run), MeshConfig(data=1), 1)


def assert_same(found: Run, expected: Run) -> None:
    for one, other in zip(found[0], expected[0], strict=True):
        assert one == pytest.approx(other, rel=2e-4, abs=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-4, 1e-5), found[1], expected[1])


@pytest.mark.parametrize("run", ["linear", "classes", "instances"])
def test_eight_devices_train_as_one_does(run: str) -> None:
    assert_same(train(config(run), MeshConfig(data=2, fsdp=2, tensor=2), 8), alone(run))


def test_micro_batches_train_as_the_whole() -> None:
    cfg = config("classes")
    cfg.accum_steps = 2
    # Points and masks of attention are drawn anew in each, so the sizes of the losses are near.
    found, _ = train(cfg, MeshConfig(data=1), 1)
    for one, other in zip(found, alone("classes")[0], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.05)


def test_a_frozen_encoder_stays_and_its_layer_learns() -> None:
    _, ((before, statistics), *_, (after, changed)) = alone("linear, frozen")
    for name, value in before.items():
        same = jax.tree.map(lambda a, b: np.array_equal(a, b), value, after[name])
        assert jax.tree.all(same) == (name != "segment"), name
    old, new = (x["batch_stats"]["segment"]["norm"]["mean"] for x in (statistics, changed))
    assert np.all(old == 0)
    assert np.any(new != 0)


def test_masks_are_annealed_by_the_steps_of_the_run() -> None:
    metrics, states = alone("classes")
    assert [each["masked"] for each in metrics] == [1.0, 1.0]  # 6 steps, of which 2 to 4
    assert metrics[1]["loss"] < metrics[0]["loss"] * 1.2
    names = {"eomt_query", "eomt_class", "eomt_mask", "eomt_upscale"}
    plain = models.abstract(config("classes").model)["params"].keys()
    assert states[0][0].keys() == plain | names


def test_flops_count_the_heads_and_a_frozen_encoder_once() -> None:
    def flops(run: str) -> int:
        return build_lib.example_flops(build_lib.build(config(run), 1000))

    encoder = build_lib.build(config("linear"), 1000)
    shapes = {"params": encoder.params, **encoder.abstract.model_state}
    alone_ = Objective.flops(encoder.objective, shapes)
    layer = 3 * 2 * 16 * 16 * CLASSES  # three times 16 patches, D = 16, K
    assert flops("linear") == alone_ + layer
    assert flops("linear, frozen") == alone_ // 3 + layer
    assert flops("classes") > alone_


def test_the_data_tell_the_number_of_classes() -> None:
    cfg = dataclasses.replace(config("classes"), objective=EomtConfig(blocks=2))
    assert fitted(cfg, 100, 7).objective == EomtConfig(num_classes=7, blocks=2)
    kept = dataclasses.replace(cfg, objective=EomtConfig(num_classes=5, blocks=2))
    assert fitted(kept, 100, 7).objective is kept.objective
