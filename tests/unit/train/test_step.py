# SPDX-License-Identifier: Apache-2.0
"""The step: the same losses on every layout, accumulation, EMA, and no harm from NaN."""

import jax
import numpy as np
import pytest

from vit_jax import models, sharding
from vit_jax.config import Config
from vit_jax.data import DataConfig, MixConfig
from vit_jax.optim import OptimConfig
from vit_jax.train import build as build_lib
from vit_jax.train.state import TrainState

STEPS = 5


def tiny(**fields: object) -> Config:
    return Config(
        model=models.variant(
            "vit_mu8",
            image_size=(16, 16),
            patch=(8, 8),
            depth=2,
            num_classes=8,
            zero_head=False,
            dropout_rate=0.1,
            drop_path_rate=0.1,
            scan_unroll=1,
        ),
        data=DataConfig(batch_size=16, mix=MixConfig(mixup_alpha=0.2)),
        optim=OptimConfig(lr=1e-3, weight_decay=0.1),
        duration=f"{STEPS} steps",
        **fields,
    )


def _batches(count: int = STEPS) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "image": rng.integers(0, 256, (16, 16, 16, 3), np.uint8),
            "label": rng.integers(0, 8, 16, np.int32),
        }
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def averaged():
    """Compile a step with a moving average; returns it, on one batch, and a maker of states."""
    cfg = tiny(ema_decay=0.75)
    cfg.duration, cfg.optim = "30 steps", OptimConfig(lr=1e-2)
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    parts = build_lib.build(cfg, num_examples=1000)
    step = build_lib.compile_step(parts, mesh)
    first = build_lib.init_state(cfg, parts, mesh)

    def take(state: TrainState):
        with jax.set_mesh(mesh):
            return step(state, {}, sharding.global_batch(_batches(1)[0], mesh, batch_size=16))

    return take, lambda: jax.device_put(first, may_alias=False)
