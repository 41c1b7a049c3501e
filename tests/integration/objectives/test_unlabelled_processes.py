# SPDX-License-Identifier: Apache-2.0
"""DINOv2's run, stopped and continued or spread over two processes, is the same run.

Masks, crops, the teacher and the centre are functions of seed and step, or in the checkpoint. The
masks of an MAE, which has no more than these, are drawn in the step:
test_unlabelled_runs.py continues one, test_unlabelled_steps.py has it on eight devices. Processes
that are killed at any moment are tests/smoke/test_runs.py's.
"""

from pathlib import Path

import pytest

from tests.faults.test_damaged_checkpoints import stopped
from tests.integration.train import test_resume
from tests.integration.train.test_layouts import by_hand
from tests.integration.train.test_resume import ROOT, digest, finish
from vit_jax.train.report.writers import read_jsonl

STEPS = 12
SMALL = (
    *("--config.model.dim=16", "--config.model.depth=1", "--config.model.num_heads=2"),
    *("--config.model.mlp_dim=32", "--config.data.batch_size=16"),
    *(f"--config.duration={STEPS} steps", "--config.optim.warmup=2 steps"),
    *("--config.checkpoint.every=3 steps", "--config.checkpoint.keep_best=0"),
    "--config.checkpoint.keep=9",
    *("--config.log.every=1 steps", "--config.log.tensorboard=false"),
)
HEADS = tuple(
    f"--config.objective.{head}.{size}"
    for head in ("head", "patch_head")
    for size in ("prototypes=32", "hidden_dim=16", "bottleneck_dim=8")
)
# With everything on that has a state: the teacher, two centres, held prototypes, schedules.
RUN = (
    *(f"--config={ROOT}/configs/unlabelled_digits.py:dinov2", *SMALL, *HEADS),
    *("--config.objective.balance=centre", "--config.optim.hold=_head/prototypes"),
    *("--config.optim.hold_for=4 steps", "--config.optim.weight_decay_end=0.4"),
    "--config.model.drop_path_rate=0.1",
)

ALONE = (*RUN, "--config.evals.knn=none")
OF_TWO = (*RUN, "--config.evals.knn.every=")  # neighbours are found once, at the end


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train without a break in one process of one device."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    finish(workdir, run=ALONE)
    return workdir


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    assert stopped(whole, workdir, 6).is_dir()
    finish(workdir, run=ALONE)
    assert "continuing" in workdir.with_suffix(".log").read_text()
    assert digest(workdir, ALONE) == digest(whole, ALONE)
    assert losses(workdir) == losses(whole)


@pytest.mark.slow
def test_two_processes_train_as_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = []
    for env in by_hand(2):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        processes.append(test_resume.start(tmp_path / "run", run=OF_TWO))
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "knn_ema/knn5" in row] == [STEPS]
    found, expected = losses(tmp_path / "run"), losses(whole)
    assert found[:4] == pytest.approx(expected[:4], rel=1e-3)
    # Sums in another order are another rounding, which a sharp teacher and Adam magnify.
    assert found == pytest.approx(expected, rel=0.05)


def losses(workdir: Path) -> list[float]:
    rows = read_jsonl(workdir / "metrics.jsonl")
    found = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert sorted(found) == list(range(1, STEPS + 1))
    return [found[step] for step in sorted(found)]
