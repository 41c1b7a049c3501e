# SPDX-License-Identifier: Apache-2.0
"""A run begun with the oldest JAX of the range is read, and continued, by the one that is here.

tests/golden/run_jax_0_10_0 was written by locks/oldest.txt on Python 3.11, eight steps of
which the second four, and what a finished run leaves, were taken away:

    python main.py --config=configs/vit_mu_digits.py --config.model.dim=16 --config.model.depth=1 \
        --config.model.num_heads=2 --config.model.mlp_dim=32 --config.data.batch_size=16 \
        --config.duration="8 steps" --config.optim.warmup="2 steps" \
        --config.checkpoint.every="4 steps" --config.checkpoint.keep_best=0 \
        --config.log.every="1 steps" --config.log.tensorboard=false --workdir=WORKDIR
"""

import shutil
from pathlib import Path

import pytest

import vit_jax
from tests.integration.train.test_resume import SMALL, finish
from vit_jax.checkpoints import reader
from vit_jax.train.report.writers import read_jsonl

OLD = Path(__file__).parents[2] / "golden" / "run_jax_0_10_0"
ARGS = (
    *SMALL,
    "--config.duration=8 steps",
    "--config.optim.warmup=2 steps",
    "--config.checkpoint.every=4 steps",
    "--config.checkpoint.keep_best=0",
    "--config.log.every=1 steps",
    "--config.log.tensorboard=false",
)


def test_its_checkpoint_is_whole_and_becomes_a_model() -> None:
    saved = reader.find(OLD)
    assert (saved.step, saved.manifest.metadata["versions"]["jax"]) == (4, "0.10.0")
    assert len(vit_jax.load(str(OLD)).class_names) == 10  # every array agreed with its digest


def test_it_continues_as_it_did_up_to_rounding(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    shutil.copytree(OLD, workdir)
    finish(workdir, run=ARGS)
    assert "at step 4 of 8" in workdir.with_suffix(".log").read_text()
    here, there = (
        {
            row["step"]: row["train/loss"]
            for row in read_jsonl(w / "metrics.jsonl")
            if "train/loss" in row
        }
        for w in (workdir, OLD)
    )
    assert sorted(here) == sorted(there) == list(range(1, 9))
    # OpenCV 5 turns images otherwise than 4.13, by 3e-4 of the loss; jax rounds by 1e-7.
    for step in range(5, 9):
        assert here[step] == pytest.approx(there[step], rel=2e-3)
