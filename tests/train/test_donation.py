# SPDX-License-Identifier: Apache-2.0
"""Every step writes its new state over the old one: all of it, in every family and layout."""

import dataclasses
import warnings
from typing import Any

import jax
import pytest

from tests.models.tiny import TINY
from vit_jax import models, sharding
from vit_jax.analysis import memory
from vit_jax.config import Config
from vit_jax.data import DataConfig, MixConfig
from vit_jax.objectives import Distillation, DistillConfig, ObjectiveConfig
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer
from vit_jax.sharding import MeshConfig
from vit_jax.train import build as build_lib

BATCH = 16
MIXED = MeshConfig(data=2, fsdp=2, tensor=2)


def config(family: str, mesh: MeshConfig | None = None, **fields: Any) -> Config:
    optim = OptimConfig(weight_decay=0.1, mu_dtype=MomentDtype.BFLOAT16)
    base = Config(
        model=TINY[family],
        data=DataConfig(batch_size=BATCH, mix=MixConfig(mixup_alpha=0.2)),
        optim=optim,
        duration="2 steps",
        mesh=mesh or MeshConfig(),
        accum_steps=2,
        ema_decay=0.9,
    )
    return dataclasses.replace(base, **fields)


def assert_all_is_written_over(cfg: Config, devices: int) -> None:
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:devices])
    parts = build_lib.build(cfg, num_examples=1000)
    size = memory.device_bytes(build_lib.abstract_state(parts, mesh))
    batch = {
        "image": jax.ShapeDtypeStruct((BATCH, *models.input_shape(cfg.model)), "uint8"),
        "label": jax.ShapeDtypeStruct((BATCH,), "int32"),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*donated")  # "buffers were not usable"
        plan = build_lib.lower_step(parts, mesh, batch).compile().memory_analysis()
    assert plan.alias_size_in_bytes == size


@pytest.mark.parametrize("family", TINY)
def test_one_device(family: str) -> None:
    """The moving average, BatchNorm's statistics and a bfloat16 moment among it."""
    assert_all_is_written_over(config(family), 1)


@pytest.mark.slow
@pytest.mark.parametrize("family", TINY)
def test_eight_devices(family: str) -> None:
    assert_all_is_written_over(config(family, MIXED), 8)


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_two_passes_and_a_teacher_that_is_only_read(devices: int) -> None:
    taught = DistillConfig(kind=Distillation.HARD, teacher=TINY["regnet"], weights="ckpt:elsewhere")
    cfg = config(
        "deit",
        MIXED if devices == 8 else MeshConfig(),
        objective=ObjectiveConfig(distill=taught),
        optim=OptimConfig(name=Optimizer.SGD, sam_rho=0.1),
        accum_steps=1,
    )
    assert_all_is_written_over(cfg, devices)
