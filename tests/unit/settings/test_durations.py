# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.errors import UserError
from vit_jax.settings.durations import Clock

CLOCK = Clock(batch_size=1024, num_examples=1_268_355, total_steps=1000)


@pytest.mark.parametrize(
    "text, steps",
    [
        ("", 0),
        ("10_000 steps", 10_000),
        ("1 step", 1),
        ("1e3 steps", 1000),
        ("90 epochs", 111_476),  # big_vision's 90 epochs of train[:99%] at 1,024, rounded down
        ("90ep", 111_476),
        ("0.5 epochs", 619),
        ("2048 examples", 2),
        ("1 examples", 1),  # at least one step
        ("0 steps", 0),
        ("5%", 50),
        ("12.5 percent", 125),
    ],
)
def test_steps(text: str, steps: int) -> None:
    assert CLOCK.steps(text) == steps


@pytest.mark.parametrize(
    "text", ["ten steps", "10", "10 stps", "-3 steps", "5 % of it", "nan steps"]
)
def test_unreadable(text: str) -> None:
    with pytest.raises(UserError, match="cannot read the duration"):
        CLOCK.steps(text)


def test_a_run_cannot_be_a_share_of_itself() -> None:
    with pytest.raises(UserError, match="percentage"):
        Clock(batch_size=1, num_examples=1).steps("5%")
