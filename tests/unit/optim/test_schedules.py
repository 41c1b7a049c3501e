# SPDX-License-Identifier: Apache-2.0
"""Learning rates against hand-computed values, timm's and Google's formulas."""

import math

import numpy as np
import pytest

from tests.refusals import refused_as
from vit_jax.errors import UserError
from vit_jax.optim import OptimConfig, Schedule, cosine, make_schedule
from vit_jax.optim.schedules import make_late
from vit_jax.settings.durations import Clock


def clock(total: int) -> Clock:
    return Clock(batch_size=10, num_examples=100, total_steps=total)


def rates(steps, total=100, **settings):
    schedule = make_schedule(OptimConfig(**settings), clock(total))
    return np.array([schedule(step) for step in steps])


@pytest.mark.parametrize(
    "kind, middle",
    # 10 steps after the 20 of warmup, out of 80: p = 1/8.
    [
        (Schedule.COSINE, 0.1 + 0.9 * (1 + math.cos(math.pi / 8)) / 2),
        (Schedule.LINEAR, 0.1 + 0.9 * 7 / 8),
    ],
)
def test_curves_end_at_min_lr(kind, middle):
    got = rates(
        [0, 5, 20, 30, 60, 100, 120],
        schedule=kind, lr=1.0, warmup="20 steps", warmup_lr=0.2, min_lr=0.1,
    )  # fmt: skip
    np.testing.assert_allclose(got, [0.2, 0.4, 1.0, middle, 0.55, 0.1, 0.1], rtol=1e-6)


def test_rsqrt_halves_after_three_timescales():
    got = rates(
        [0, 1, 2, 12, 32, 82],
        schedule=Schedule.RSQRT, lr=1.0, warmup="2 steps", rsqrt_timescale="1 epochs",
    )  # fmt: skip
    np.testing.assert_allclose(got, [0, 0.5, 1, 2**-0.5, 0.5, 1 / 3], rtol=1e-6)


def test_cooldown_of_constant_and_rsqrt_is_linear_to_min_lr():
    settings = {"lr": 1.0, "cooldown": "20 steps", "min_lr": 0.1}
    constant = rates([0, 80, 90, 100], schedule=Schedule.CONSTANT, **settings)
    np.testing.assert_allclose(constant, [1, 1, 0.55, 0.1], rtol=1e-6)
    rsqrt = rates([80, 90, 100], schedule=Schedule.RSQRT, rsqrt_timescale="10 steps", **settings)
    np.testing.assert_allclose(rsqrt, [1 / 3, 0.1 + (10**-0.5 - 0.1) / 2, 0.1], rtol=1e-6)


def test_cooldown_by_the_square_root_and_of_a_branch():
    # Haegele et al. 2024, eq. 1: 1 - sqrt((n - (N - N_decay)) / N_decay), from the rate to min_lr.
    settings = {"schedule": Schedule.CONSTANT, "lr": 1.0, "min_lr": 0.1, "cooldown_shape": "sqrt"}
    want = [1, 1, 0.1 + 0.9 * (1 - 0.05**0.5), 0.1 + 0.9 * 0.5, 0.1]
    cooldown = {"cooldown": "20 steps"}
    got = rates([0, 80, 81, 85, 100], **settings, **cooldown)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    branch = {**settings, "branch": "ckpt:runs/trunk@80", "warmup": "80 steps"}
    np.testing.assert_allclose(rates([40, 80, 81, 85, 100], **branch), [0.5, *want[1:]], rtol=1e-6)
    linear = {**branch, "cooldown_shape": "linear"}
    np.testing.assert_allclose(rates([80, 90, 100], 105, **linear), [1, 0.64, 0.28], rtol=1e-6)
    for total, warmup, why in (
        (80, "", "is not before the end"),
        (100, "81 steps", "in the warmup"),
    ):
        with pytest.raises(UserError, match=why):
            rates([0], total, **{**branch, "warmup": warmup})


def test_step_falls_at_its_milestones():
    # Those of BiT's pretraining and, by default, BiT-HyperRule; counted from the run's start.
    settings = {"schedule": Schedule.STEP, "lr": 1.0, "warmup": "20 steps"}
    got = rates([0, 10, 20, 29, 30, 59, 60, 89, 90, 99], **settings)
    np.testing.assert_allclose(got, [0, 0.5, 1, 1, 0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3], rtol=1e-6)
    own = {"milestones": ("2 epochs", "600 examples"), "decay_factor": 0.5}
    got = rates([19, 20, 59, 60, 99], **{**settings, **own, "warmup": ""})
    np.testing.assert_allclose(got, [1, 0.5, 0.5, 0.25, 0.25], rtol=1e-6)


def test_cooldown_of_step_starts_from_its_last_stair():
    settings = {"schedule": Schedule.STEP, "lr": 1.0, "milestones": ("50%",), "cooldown": "20%"}
    np.testing.assert_allclose(rates([49, 50, 80, 90, 100], **settings), [1, 0.1, 0.1, 0.05, 0])


def test_cooldown_of_cosine_stays_at_min_lr_as_in_timm():
    got = rates([40, 80, 90, 99], lr=1.0, cooldown="20 steps", min_lr=0.1)
    np.testing.assert_allclose(got, [0.55, 0.1, 0.1, 0.1], rtol=1e-6)


def test_pieces_hold_the_rate_of_their_first_step():
    settings = {"schedule": Schedule.LINEAR, "lr": 1.0, "schedule_every": "1 epoch"}
    # 105 steps are 10 pieces of 10; the last 5 steps get the end.
    got = rates([0, 9, 10, 19, 99, 100, 104], 105, **settings)
    np.testing.assert_allclose(got, [1, 1, 0.9, 0.9, 0.1, 0, 0], atol=1e-7)
    lagging = rates([0, 9, 10, 19, 20, 99, 104], 105, schedule_lag=True, **settings)
    np.testing.assert_allclose(lagging, [1, 1, 1, 1, 0.9, 0.2, 0.1], atol=1e-7)


def test_pieces_round_every_length_down_to_them():
    # Of 10 steps: warmup 25 is 20, cooldown 39 is 30; the rest of the curve is 50 long.
    settings = {"schedule": Schedule.LINEAR, "lr": 1.0, "schedule_every": "10 steps"}
    got = rates([9, 10, 20, 30, 70], 105, warmup="25 steps", cooldown="39 steps", **settings)
    np.testing.assert_allclose(got, [0, 0.5, 1, 0.8, 0], atol=1e-7)
    steps = {"schedule": Schedule.STEP, "lr": 1.0, "schedule_every": "10 steps"}
    got = rates([49, 50, 59, 60], 105, milestones=("59 steps",), **steps)
    np.testing.assert_allclose(got, [1, 0.1, 0.1, 0.1])


def test_overlap_lets_the_warmup_hide_the_curves_beginning():
    linear = {"schedule": Schedule.LINEAR, "lr": 1.0, "warmup": "20 steps"}
    got = rates([10, 19, 20, 60], warmup_overlap=True, **linear)
    np.testing.assert_allclose(got, [0.5, 0.95, 0.8, 0.4], rtol=1e-6)
    rsqrt = {"schedule": Schedule.RSQRT, "lr": 1.0, "warmup": "30 steps"}
    got = rates([15, 30], warmup_overlap=True, rsqrt_timescale="10 steps", **rsqrt)
    np.testing.assert_allclose(got, [0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("kind", [Schedule.COSINE, Schedule.LINEAR])
def test_equals_the_formula_of_google_research_vision_transformer(kind):
    # create_learning_rate_schedule: decay by progress, times min(1, step / warmup).
    def google(step, total=10_000, base=0.03, warmup=500, linear_end=1e-5):
        progress = min(max((step - warmup) / (total - warmup), 0), 1)
        if kind == Schedule.LINEAR:
            lr = linear_end + (base - linear_end) * (1 - progress)
        else:
            lr = base * 0.5 * (1 + math.cos(math.pi * progress))
        return lr * min(1, step / warmup)

    steps = [0, 1, 250, 499, 500, 501, 5000, 9999]
    end = 1e-5 if kind == Schedule.LINEAR else 0.0
    got = rates(steps, 10_000, schedule=kind, lr=0.03, warmup="500 steps", min_lr=end)
    np.testing.assert_allclose(got, [google(step) for step in steps], rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"warmup": "60 steps", "cooldown": "41 steps"}, "warmup"),
        ({"warmup": "ten"}, ("settings.durations.parse", "")),
        ({"schedule": Schedule.RSQRT, "rsqrt_timescale": ""}, "rsqrt_timescale"),
        ({"schedule": Schedule.STEP, "milestones": ()}, r"milestones=\(\)"),
        ({"schedule": Schedule.STEP, "milestones": ("60%", "30%")}, r"steps \[60, 30\] of 100"),
        ({"schedule": Schedule.STEP, "milestones": ("30%", "100 steps")}, "milestones"),
        ({"schedule_every": "11 epochs"}, "optim.schedule_every='11 epochs' .110 steps."),
        ({"schedule_every": "1 epoch", "warmup": "9 steps"}, "optim.warmup='9 steps' .*shorter"),
        ({"schedule_every": "1 epoch", "cooldown": "9 steps"}, "optim.cooldown"),
        ({"schedule_every": "soon"}, ("settings.durations.parse", "")),
    ],
)
def test_impossible_durations_are_user_errors(settings, named):
    with refused_as(named):
        make_schedule(OptimConfig(**settings), clock(100))


def test_warmup_and_cooldown_may_fill_the_run():
    settings = {"lr": 1.0, "warmup": "60 steps", "cooldown": "40%"}
    constant = rates([0, 60, 80, 100], schedule=Schedule.CONSTANT, **settings)
    np.testing.assert_allclose(constant, [0, 1, 0.5, 0])
    np.testing.assert_allclose(rates([0, 60, 80], **settings), [0, 1, 0])


@pytest.mark.parametrize("start, end", [(0.04, 0.4), (0.996, 1.0), (0.3, 0.1), (0.0, 0.2)])
def test_cosine_from_one_value_to_another(start, end):
    at = cosine(start, end, 40)
    # The ends to the last bit, and past the run no further.
    exact = [at(np.int32(step)) for step in (0, 40, 41)]
    np.testing.assert_array_equal(exact, np.array([start, end, end], np.float32))
    # (1 + cos(pi / 4)) / 2 at a quarter, a half in the middle.
    quarter = end + (start - end) * (1 + math.sqrt(0.5)) / 2
    np.testing.assert_allclose([at(10), at(20)], [quarter, (start + end) / 2], rtol=1e-6)


def test_cosine_is_that_of_the_code_of_dino():
    # utils.cosine_scheduler, without a warmup.
    steps = np.arange(50)
    theirs = 0.4 + 0.5 * (0.04 - 0.4) * (1 + np.cos(np.pi * steps / len(steps)))
    np.testing.assert_allclose([cosine(0.04, 0.4, 50)(s) for s in steps], theirs, rtol=1e-6)


def test_poly_and_what_begins_late_are_those_of_eomts_code():
    settings = {"schedule": Schedule.POLY, "lr": 1.0, "warmup": "10 steps", "late": "^(?!eomt_)"}
    cfg = OptimConfig(**settings, late_start="10 steps", late_warmup="20 steps")
    schedule, late = make_schedule(cfg, clock(100)), make_late(cfg, clock(100))
    steps = [0, 5, 10, 20, 30, 65, 99]
    # tue-mps/eomt training/two_stage_warmup_poly_schedule.py.
    heads = [s / 10 if s < 10 else (1 - (s - 10) / 90) ** 0.9 for s in steps]
    np.testing.assert_allclose([schedule(s) for s in steps], heads, rtol=1e-5)
    encoder = [0, 0, 0, 0.5, 1, (1 - 35 / 70) ** 0.9, (1 - 69 / 70) ** 0.9]
    np.testing.assert_allclose([late(s) for s in steps], encoder, rtol=1e-4)
    with refused_as(("optim.schedules.make_schedule", "optim.warmup")):
        make_late(cfg, clock(25))
