# SPDX-License-Identifier: Apache-2.0
"""Weights out of a run's checkpoints: the right step, the right arrays, all of them intact."""

from pathlib import Path

import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import save
from vit_jax import weights
from vit_jax.train.state import TrainState
from vit_jax.weights.readers.ckpt import Checkpoint

VIT = TINY["vit"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, TrainState]]:
    workdir = tmp_path_factory.mktemp("run")
    return workdir, save(workdir, VIT, {1: 0.5, 2: 0.9, 3: None}, with_ema=True)


def test_where_there_is_no_checkpoint(
    run: tuple[Path, dict[int, TrainState]], tmp_path: Path
) -> None:
    with refused_by("checkpoints.reader.find"):
        weights.load(f"ckpt:{run[0]}@9", VIT)
    with refused_by("checkpoints.reader._checkpoints"):
        weights.load(f"ckpt:{tmp_path}/nowhere", VIT)
    with refused_by("checkpoints.reader._checkpoints"):
        weights.load(f"ckpt:{tmp_path}", VIT)
    save(tmp_path / "plain", VIT, {1: None})
    with refused_by("checkpoints.reader._best"):
        weights.load(f"ckpt:{tmp_path}/plain@best", VIT)
    with refused_by("weights.config.split"):
        weights.load("ckpt:", VIT)


def test_the_model_of_a_run_is_known(run: tuple[Path, dict[int, TrainState]]) -> None:
    assert Checkpoint(str(run[0])).model == VIT
