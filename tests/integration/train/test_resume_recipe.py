# SPDX-License-Identifier: Apache-2.0
"""A recipe with everything on, stopped and continued, ends with the very same bits.

Processes that are killed at any moment are tests/smoke/test_runs.py's.
"""

from pathlib import Path

import pytest

from tests.faults.test_damaged_checkpoints import stopped
from tests.integration.train.test_resume import ROOT, digest, finish
from tests.unit.train import teachers
from tests.unit.train.distilled_digits import TEACHER, get_config
from vit_jax.train.report.writers import read_jsonl

RECIPE = (
    f"--config={ROOT}/tests/unit/train/distilled_digits.py",
    "--config.optim.weight_decay_end=0.4",
    "--config.optim.hold=^head",
    "--config.optim.hold_for=20 steps",
    "--config.ema_decay_end=1",
    "--config.checkpoint.keep=9",
)
STEPS = 40
STOPPED = 15  # while the head is held, between two evaluations


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return teachers.save(tmp_path_factory.mktemp("teacher") / "run", TEACHER)


@pytest.mark.slow
def test_a_stopped_recipe_ends_with_the_same_bits(weights: str, tmp_path: Path) -> None:
    data, model = get_config().data, get_config().model
    rates = (data.mix.mixup_alpha, data.mix.cutmix_alpha, data.erasing_prob, data.repeats - 1)
    assert all((*rates, model.dropout_rate, model.drop_path_rate, get_config().ema_decay))
    run = (*RECIPE, f"--config.objective.distill.weights={weights}")
    whole, workdir = tmp_path / "whole", tmp_path / "run"
    finish(whole, run=run)
    assert stopped(whole, workdir, STOPPED).is_dir()
    finish(workdir, run=run)
    assert f"continuing {workdir} at step {STOPPED} of" in workdir.with_suffix(".log").read_text()
    assert digest(workdir, run) == digest(whole, run)
    rows, expected = (read_jsonl(w / "metrics.jsonl") for w in (workdir, whole))
    assert len(expected) >= STEPS
    for name in ("train/loss", "train/distill_loss", "val/top1", "val_ema/loss"):
        got, want = ([r[name] for r in x if name in r] for x in (rows, expected))
        assert got == want, name
