# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints are the best, and where they cannot lie."""

import math
from pathlib import Path

import pytest

from vit_jax.checkpoints.config import Mode, check_path, ranked, steps_in
from vit_jax.errors import UserError

METRICS = {1: {"a": 0.5}, 2: {"a": 0.7}, 3: {"a": 0.7}, 4: {"a": math.nan}, 5: {"b": 9.0}}


def test_the_best_comes_first_and_the_later_of_equals() -> None:
    assert ranked(METRICS, "a", Mode.MAX) == [3, 2, 1]
    assert ranked(METRICS, "a", Mode.MIN) == [1, 3, 2]
    assert ranked(METRICS, "c", Mode.MAX) == []


def test_finished_checkpoints_are_numbers(tmp_path: Path) -> None:
    for name in ("10", "9", "11.damaged", "12.orbax-checkpoint-tmp"):
        (tmp_path / name).mkdir()
    assert steps_in(tmp_path) == [9, 10]


def test_a_path_that_orbax_does_not_find_again_is_refused() -> None:
    check_path(Path("/runs/a b-é"))
    with pytest.raises(UserError, match=r"has \* \[ in its path"):
        check_path(Path("/runs/[a*"))
    with pytest.raises(UserError, match="no UTF-8"):
        check_path(Path("/runs/\udcff"))
