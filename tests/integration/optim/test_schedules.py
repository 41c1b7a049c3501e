# SPDX-License-Identifier: Apache-2.0
"""Learning rates against hand-computed values, timm's and Google's formulas."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.optim.test_schedules import clock, rates
from vit_jax.optim import OptimConfig, Schedule, make_schedule
from vit_jax.settings.durations import Clock

GOLDEN = Path(__file__).parents[2] / "golden"


# float32: a few roundings of the rate itself, and of a cosine between -1 and 1.
FLOAT32 = {"rtol": 1e-6, "atol": 1e-3 * 2**-22}
SWIN = {"lr": 1e-3, "warmup": "60 steps", "warmup_lr": 1e-6, "min_lr": 1e-5}
DEIT = {
    "lr": 1e-3, "warmup": "5 epochs", "warmup_lr": 1e-6, "min_lr": 1e-5,
    "schedule_every": "1 epoch", "schedule_lag": True, "warmup_overlap": True,
}  # fmt: skip


def table(name):
    """Read the rates that timm's scheduler gives as the authors drive it."""
    with np.load(GOLDEN / "lr_tables.npz") as tables:
        return tables[name]


def test_equals_swins_rate_of_every_iteration():
    # 300 epochs of 3 iterations, warmup_prefix, stepped after the update.
    golden = table("swin")
    assert golden[0] == golden[1] == 1e-6
    got = rates(range(900), total=900, schedule_lag=True, **SWIN)
    np.testing.assert_allclose(got, golden, **FLOAT32)
    np.testing.assert_allclose(rates(range(899), total=900, **SWIN), golden[1:], **FLOAT32)


def test_equals_deits_rate_of_every_epoch():
    # ImageNet: epochs of 1,251.14 steps, of which DeiT runs 1,251; 41 steps are left of 300.
    golden = table("deit")
    assert golden[0] == golden[1] == 1e-6
    whole = Clock(batch_size=1024, num_examples=1_281_167)
    total = whole.steps("300 epochs")
    schedule = make_schedule(OptimConfig(**DEIT), dataclasses.replace(whole, total_steps=total))
    for of_epoch in (0, 1, 1250):
        got = schedule(1251 * jnp.arange(300) + of_epoch)
        np.testing.assert_allclose(got, golden, **FLOAT32)
    assert total == 300 * 1251 + 41
    more = {"warmup": "5 steps", "schedule_lag": True, "warmup_overlap": True}
    np.testing.assert_allclose(schedule(total - 1), rates([300], 300, **{**SWIN, **more}))


@pytest.mark.parametrize("kind", list(Schedule))
def test_jits_to_float32_over_arrays_of_steps(kind):
    cooldown = "10%"
    schedule = make_schedule(OptimConfig(schedule=kind, warmup="5%", cooldown=cooldown), clock(200))
    steps = jnp.arange(200)
    got = jax.jit(schedule)(steps)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, [schedule(int(step)) for step in steps], rtol=1e-5, atol=1e-9)
    assert schedule(np.int32(3)).shape == ()
