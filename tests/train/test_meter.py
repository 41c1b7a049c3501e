# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest

from vit_jax.errors import NonFinite
from vit_jax.faults import FaultsConfig
from vit_jax.train.meter import Meter


def step(loss: float, *, nonfinite: float = 0.0, lr: float = 0.1) -> dict:
    values = {"loss": loss, "nonfinite": nonfinite, "lr": lr}
    return {name: jnp.float32(value) for name, value in values.items()}


def test_means_leave_the_steps_in_flight_for_the_next_line() -> None:
    meter = Meter(FaultsConfig(), lambda step, loss: None)
    for i in range(6):
        meter.add(i + 1, step(float(i), lr=0.1 * i))
    first = meter.read()
    assert first["train/loss"] == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert first["train/lr"] == pytest.approx(0.3)
    assert meter.read(everything=True)["train/loss"] == pytest.approx(4.5)


def test_the_first_line_needs_no_second_step() -> None:
    meter = Meter(FaultsConfig(), lambda step, loss: None)
    meter.add(1, step(2.0))
    assert meter.read()["train/loss"] == 2.0


def test_skipped_steps_are_counted_but_not_averaged() -> None:
    meter = Meter(FaultsConfig(), lambda step, loss: None)
    for loss, bad in ((1.0, 0.0), (float("nan"), 1.0), (3.0, 0.0), (5.0, 0.0)):
        meter.add(1, step(loss, nonfinite=bad))
    scalars = meter.read(everything=True)
    assert scalars["train/loss"] == 3.0
    assert scalars["train/nonfinite"] == 0.25


def test_a_run_that_never_recovers_is_ended() -> None:
    meter = Meter(FaultsConfig(), lambda step, loss: None)
    for i in range(21):
        meter.add(i + 1, step(float("nan"), nonfinite=1.0))
    with pytest.raises(NonFinite, match=r"20 steps up to 20.*optim\.lr"):
        meter.add(22, step(float("nan"), nonfinite=1.0))


def test_one_good_step_starts_the_count_again() -> None:
    meter = Meter(FaultsConfig(), lambda step, loss: None)
    for i in range(60):
        meter.add(i + 1, step(1.0, nonfinite=float(i % 15 != 0)))
