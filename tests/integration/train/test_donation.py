# SPDX-License-Identifier: Apache-2.0
"""Every step writes its new state over the old one: all of it, in every family and layout.

Here are the steps that hold more than one gradient or one network; test_families.py has the plain
step of every family, on one device and on eight, where a sharding could keep one more.
"""

import dataclasses
import warnings
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost import memory
from vit_jax.data import DataConfig, MixConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.objectives import DistillConfig
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer
from vit_jax.train import build as build_lib

BATCH = 16
MIXED = MeshConfig(data=2, fsdp=2, tensor=2)


def compile_in_place(cfg: Config, parts: build_lib.Parts, mesh: Mesh) -> Any:
    """Compile the step, which must write all of its new state over the old one."""
    size = memory.device_bytes(build_lib.abstract_state(parts, mesh))
    batch_size = cfg.data.batch_size
    batch = {
        "image": jax.ShapeDtypeStruct((batch_size, *models.input_shape(cfg.model)), "uint8"),
        "label": jax.ShapeDtypeStruct((batch_size,), "int32"),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*donated")  # "buffers were not usable"
        step = build_lib.lower_step(parts, mesh, batch).compile()
    assert step.memory_analysis().alias_size_in_bytes == size
    return step


def check(family: str, devices: int, **fields: Any) -> None:
    cfg = Config(
        model=TINY[family],
        data=DataConfig(batch_size=BATCH, mix=MixConfig(mixup_alpha=0.2)),
        duration="2 steps",
        mesh=MIXED if devices == 8 else MeshConfig(),
        ema_decay=0.9,
    )
    cfg = dataclasses.replace(cfg, **fields)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:devices])
    compile_in_place(cfg, build_lib.build(cfg, num_examples=1000), mesh)


# A stack of blocks, and BatchNorm's statistics handed from one micro-batch to the next.
@pytest.mark.parametrize("family, devices", [("vit", 1), ("vit", 8), ("regnet", 8)])
def test_accumulation(family: str, devices: int) -> None:
    optim = OptimConfig(weight_decay=0.1, mu_dtype=MomentDtype.BFLOAT16)
    check(family, devices, optim=optim, accum_steps=2)


def test_two_passes_and_a_teacher_that_is_only_read() -> None:
    taught = TeacherConfig(kind=Distillation.HARD, teacher=TINY["regnet"], weights="ckpt:elsewhere")
    check(
        "deit",
        8,
        objective=DistillConfig(distill=taught),
        optim=OptimConfig(name=Optimizer.SGD, sam_rho=0.1),
    )
