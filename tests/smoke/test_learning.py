# SPDX-License-Identifier: Apache-2.0
"""Three steps of each way to learn, from the run of `digits` where one begins with weights.

Their losses are pinned: a change of an objective, of its data or of its draws moves them.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.smoke.conftest import CONFIG, ROOT, train
from tests.unit.train.distilled_digits import TEACHER
from tests.unit.train.teachers import save
from vit_jax import inference
from vit_jax.train.report.writers import read_jsonl

SHORT = (
    "--config.duration=3 steps",
    "--config.optim.warmup=1 steps",
    "--config.log.every=1 steps",
    "--config.log.tensorboard=false",
    "--config.data.batch_size=16",
)
UNLABELLED = f"--config={ROOT}/configs/unlabelled_digits.py"
RUNS = {
    "mae": (f"{UNLABELLED}:mae", *SHORT, "--config.evals.val=none", "--config.evals.knn=none"),
    "dino": (f"{UNLABELLED}:dino", *SHORT, "--config.evals.knn=none"),
    "distillation": (
        f"--config={ROOT}/tests/unit/train/distilled_digits.py",
        *SHORT,
        "--config.evals.val=none",
        "--config.objective.distill.weights={teacher}",
    ),
}
LOSSES = {
    "mae": (0.589309, 0.597980, 0.529002),
    "dino": (3.828353, 3.702123, 2.338644),
    "distillation": (2.280619, 2.287749, 2.264408),
}


def losses(workdir: Path) -> list[float]:
    rows = read_jsonl(workdir / "metrics.jsonl")
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize("run", RUNS)
def test_the_losses_are_those_of_the_versions_before(run: str, tmp_path: Path) -> None:
    teacher = save(tmp_path / "teacher", TEACHER) if run == "distillation" else ""
    words = [word.format(teacher=teacher) for word in RUNS[run]]
    assert train(tmp_path / "run", *words) == 0
    assert losses(tmp_path / "run") == pytest.approx(LOSSES[run], rel=1e-4)


def test_low_rank_changes_leave_the_base_as_it_is(digits: Path, tmp_path: Path) -> None:
    words = (
        CONFIG[0],
        *SHORT,
        "--config.evals.val=none",
        "--config.evals.test=none",
        f"--config.init.weights=ckpt:{digits}",
        "--config.lora.pattern=attn/qkv",
        "--config.lora.rank=2",
    )
    assert train(tmp_path / "run", *words) == 0
    base, tuned = (
        inference.load(f"ckpt:{place}@latest").variables["params"]
        for place in (digits, tmp_path / "run")
    )
    same = ("attn", "proj"), ("mlp", "fc1"), ("mlp", "fc2")
    for block, layer in same:
        kernels = [tree["blocks"][block][layer]["kernel"] for tree in (base, tuned)]
        np.testing.assert_array_equal(*kernels)
    change = tuned["blocks"]["attn"]["qkv"]["kernel"] - base["blocks"]["attn"]["qkv"]["kernel"]
    ranks = np.linalg.matrix_rank(np.asarray(change), tol=1e-6)
    assert set(ranks.tolist()) == {2}
