# SPDX-License-Identifier: Apache-2.0
import json

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.faults import FaultsConfig
from vit_jax.errors import NonFinite
from vit_jax.train.report.metric_buffer import KEY, MetricBuffer, saved_in


def step(loss: float, *, nonfinite: float = 0.0, lr: float = 0.1) -> dict:
    values = {"loss": loss, "nonfinite": nonfinite, "lr": lr}
    return {name: jnp.float32(value) for name, value in values.items()}


def test_means_leave_the_steps_in_flight_for_the_next_line() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    for i in range(6):
        meter.add(i + 1, step(float(i), lr=0.1 * i))
    first = meter.read()
    assert first["train/loss"] == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert first["train/lr"] == pytest.approx(0.3)
    assert meter.read(everything=True)["train/loss"] == pytest.approx(4.5)


def test_the_first_line_needs_no_second_step() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    meter.add(1, step(2.0))
    assert meter.read()["train/loss"] == 2.0


@pytest.mark.parametrize("saved_at", [1, 2, 9, 10, 11, 137])
def test_lines_after_a_resume_are_those_of_a_run_never_interrupted(saved_at: int) -> None:
    rng = np.random.default_rng(0)
    losses = rng.normal(1.0, 0.1, 170)
    losses[135] = losses[150] = 9.0  # spikes, where the 128 losses before are known

    def run(resumed: bool) -> tuple[list, list]:
        spikes, lines = [], []

        def note(step: int, loss: float) -> None:
            spikes.append((step, loss))

        meter = MetricBuffer(FaultsConfig(), note)
        for i, loss in enumerate(losses, 1):
            meter.add(i, step(loss, nonfinite=float(i % 7 == 0)))
            if i % 10 == 0:
                lines.append(meter.read(everything=i == len(losses)))
            if resumed and i == saved_at:
                known = saved_in(json.loads(json.dumps(meter.to_json())))
                meter = MetricBuffer(FaultsConfig(), note, saved=known)
        return spikes, lines

    spikes, lines = run(resumed=False)
    assert [at for at, _ in spikes] == [136, 151]
    assert run(resumed=True) == (spikes, lines)


def test_a_checkpoint_of_an_older_version_is_read() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    meter.add(1, step(2.0))
    written = meter.to_json()
    assert list(written) == ["metrics"]
    assert saved_in(written) == saved_in({"meter": written["metrics"]}) == written["metrics"]
    assert saved_in({"config": {}}) is None


def test_a_run_counts_its_nonfinite_steps_on_after_a_resume() -> None:
    meter = MetricBuffer(FaultsConfig(max_nonfinite=4), lambda step, loss: None)
    for i in range(4):  # two of them are in flight
        meter.add(i + 1, step(float("nan"), nonfinite=1.0))
    meter = MetricBuffer(
        FaultsConfig(max_nonfinite=4), lambda step, loss: None, saved=meter.to_json()[KEY]
    )
    with pytest.raises(NonFinite, match="4 steps up to 4"):
        meter.read(everything=True)


def test_another_objective_after_a_resume_shares_what_both_measure() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    for i in range(4):
        meter.add(i + 1, step(1.0) | {"top1": jnp.float32(0.5)})
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None, saved=meter.to_json()[KEY])
    for i in range(4, 8):
        meter.add(i + 1, step(3.0) | {"agreement": jnp.float32(0.5)})
    scalars = meter.read(everything=True)
    assert scalars["train/loss"] == 2.0
    assert scalars.keys() == {"train/loss", "train/lr", "train/nonfinite", "train/spikes"}


def test_skipped_steps_are_counted_but_not_averaged() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    for loss, bad in ((1.0, 0.0), (float("nan"), 1.0), (3.0, 0.0), (5.0, 0.0)):
        meter.add(1, step(loss, nonfinite=bad))
    scalars = meter.read(everything=True)
    assert scalars["train/loss"] == 3.0
    assert scalars["train/nonfinite"] == 0.25


def test_a_run_that_never_recovers_is_ended() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    for i in range(21):
        meter.add(i + 1, step(float("nan"), nonfinite=1.0))
    with pytest.raises(NonFinite, match=r"20 steps up to 20.*optim\.lr"):
        meter.add(22, step(float("nan"), nonfinite=1.0))


def test_one_good_step_starts_the_count_again() -> None:
    meter = MetricBuffer(FaultsConfig(), lambda step, loss: None)
    for i in range(60):
        meter.add(i + 1, step(1.0, nonfinite=float(i % 15 != 0)))
