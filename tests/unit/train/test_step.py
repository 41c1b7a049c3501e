# SPDX-License-Identifier: Apache-2.0
"""The step: the same losses on every layout, accumulation, EMA, and no harm from NaN."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.train.test_sam import DATA, Cosh, _step
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig, MixConfig
from vit_jax.optim import OptimConfig, Optimizer, Schedule, cosine, make_optimizer
from vit_jax.settings.durations import Clock
from vit_jax.train.state import TrainState, make_init
from vit_jax.train.step import make_train_step

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


class Seen(Cosh):
    """Notes how many examples each differentiated loss is of."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def loss(self, params, ctx, batch, rng):
        self.sizes.add(len(batch["x"]))
        return super().loss(params, ctx, batch, rng)


@pytest.mark.parametrize("accum_steps", [1, 2, 4])
def test_one_micro_batch_at_a_time_is_differentiated(accum_steps: int) -> None:
    objective = Seen()
    _step(objective, rho=0.0, accum_steps=accum_steps)
    assert objective.sizes == {8 // accum_steps}


def _averaging(ema_decay: Any) -> tuple[Any, TrainState, Any]:
    """Return a step of a model of three numbers, its state, and its batch."""
    params = {"w": jnp.asarray([1.0, -0.5, 0.3])}
    clock = Clock(batch_size=8, num_examples=8, total_steps=2)
    cfg = OptimConfig(name=Optimizer.SGD, lr=0.1, schedule=Schedule.CONSTANT)
    tx, schedule = make_optimizer(cfg, params, clock)
    init = make_init(lambda _: (params, {"mean": jnp.zeros(3)}), tx, with_ema=True)
    step = make_train_step(Cosh(), tx, schedule, ema_decay=ema_decay)
    return step, init(jax.random.key(0)), {"x": jnp.asarray(DATA)}


def test_the_decay_of_the_moving_average_goes_to_its_end() -> None:
    step, state, batch = _averaging(cosine(0.5, 1.0, 2))
    step = jax.jit(step)
    for decay in (0.5, 0.75, 1.0, 1.0):  # steps 0, 1, and 2, where the run of 2 steps would end
        before = np.asarray(state.ema["params"]["w"])
        state, _ = step(state, {}, batch)
        after = np.asarray(state.params["w"])
        assert (before != after).any()
        want = decay * before + (1 - decay) * after
        np.testing.assert_allclose(state.ema["params"]["w"], want, rtol=1e-6)


def test_a_skipped_step_leaves_the_average_alone() -> None:
    step, state, batch = _averaging(cosine(0.5, 1.0, 2))
    after, metrics = jax.jit(step)(state, {}, {"x": batch["x"] * jnp.nan})
    assert metrics["nonfinite"] == 1
    jax.tree.map(np.testing.assert_array_equal, after.ema, state.ema)


def test_a_constant_decay_is_no_function_of_the_step() -> None:
    def cosines(decay: Any) -> int:
        step, state, batch = _averaging(decay)
        return len(re.findall(r"= cos ", str(jax.make_jaxpr(step)(state, {}, batch))))

    assert (cosines(0.5), cosines(cosine(0.5, 1.0, 2))) == (0, 1)


def test_an_end_without_a_moving_average_is_refused() -> None:
    config_lib.check(tiny(ema_decay=0.9, ema_decay_end=1.0))
    config_lib.check(tiny(ema_decay=0.9, ema_decay_end=0.5))
    with refused_by("settings.fields.check_effects", "ema_decay_end"):
        config_lib.check(tiny(ema_decay_end=1.0))
    with refused_by("settings.fields.check_range", "ema_decay_end"):
        config_lib.check(tiny(ema_decay=0.9, ema_decay_end=1.5))
