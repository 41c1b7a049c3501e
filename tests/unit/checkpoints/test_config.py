# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints are the best, and where they cannot lie."""

import math
from pathlib import Path

import pytest

from vit_jax.checkpoints.config import (
    CheckpointConfig,
    Mode,
    check_path,
    check_ranking,
    ranked,
    steps_in,
)
from vit_jax.errors import UserError

PERIODS = {"val/loss": "1 epoch", "val/top1": "1 epoch", "val/wer": "1 epoch", "test/top1": ""}
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


def test_patience_needs_what_it_counts() -> None:
    last = {"val/loss": "", "val/top1": ""}
    check_ranking(CheckpointConfig(metric="val/loss", patience=3), PERIODS)
    check_ranking(CheckpointConfig(metric="val/loss"), last)  # the last is the best
    for fields, periods, why in (
        ({"patience": 3, "keep_best": 0}, PERIODS, "set checkpoint.keep_best=1"),
        ({"patience": 3}, last, "counts evaluations; give one a period"),
        ({"metric": "test/top1"}, PERIODS, "'test/top1' is measured only last"),
        ({"metric": "val/lost"}, PERIODS, "unknown checkpoint.metric 'val/lost'"),
    ):
        with pytest.raises(UserError, match=why):
            check_ranking(CheckpointConfig(**{"metric": "val/loss", **fields}), periods)
