# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are ranked in the direction of their metric, also those of older runs."""

from tests.refusals import refused_by
from vit_jax.checkpoints import CheckpointConfig, Mode
from vit_jax.checkpoints.config import check_ranking, directed, ranked, turned

PERIODS = {"val/loss": "1 epoch", "val/top1": "1 epoch", "val/wer": "1 epoch", "test/top1": ""}


def test_the_smallest_loss_is_the_best_by_default() -> None:
    metrics = {1: {"val/loss": 0.5, "val/top1": 0.1}, 2: {"val/loss": 2.5, "val/top1": 0.9}}
    assert ranked(metrics, "val/loss", CheckpointConfig().mode) == [1, 2]
    assert ranked(metrics, "val/top1", CheckpointConfig().mode) == [2, 1]


def test_what_cannot_rank_is_refused() -> None:
    check_ranking(CheckpointConfig(metric="val/loss"), PERIODS)
    check_ranking(CheckpointConfig(metric="val/wer", mode=Mode.MIN), PERIODS)
    wrong = CheckpointConfig(metric="val/loss", mode=Mode.MAX)
    with refused_by("settings.measures.direction", "checkpoint.mode"):
        check_ranking(wrong, PERIODS)
    with refused_by("settings.measures.direction"):
        check_ranking(CheckpointConfig(metric="val/wer"), PERIODS)


def test_an_older_run_that_kept_the_worst_says_so() -> None:
    now = directed(CheckpointConfig(metric="val/loss"))
    assert now.mode is Mode.MIN
    line = turned(now, {"metric": "val/loss", "mode": "max"})
    assert line == "it has kept the max val/loss; from here on it keeps the min"
    for same in ({"metric": "val/loss", "mode": "min"}, {"metric": "val/top1", "mode": "max"}, {}):
        assert not turned(now, same)
