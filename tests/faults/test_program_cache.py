# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk that are cut or changed are compiled anew, with the same result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.train.test_resume import ROOT, SMALL
from vit_jax.train.report.writers import read_jsonl

ARGS = (
    *SMALL,
    "--config.duration=4 steps",
    "--config.optim.warmup=1 steps",
    "--config.log.every=1 steps",
    "--config.log.tensorboard=false",
    *("--config.evals.val=none", "--config.evals.test=none", "--config.checkpoint.keep_best=0"),
    "--config.checkpoint.metric=",
)


def losses(workdir: Path, cache: Path) -> list[float]:
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, "main.py", f"--workdir={workdir}", *ARGS]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [
        row["train/loss"] for row in read_jsonl(workdir / "metrics.jsonl") if "train/loss" in row
    ]


@pytest.mark.slow
def test_cut_and_changed_programs(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    expected = losses(tmp_path / "one", cache)
    programs = sorted(cache.glob("*-cache"))
    assert len(programs) > 1
    assert any("train_step" in path.name for path in programs)
    for i, path in enumerate(programs):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data[: len(data) // 2] if i % 2 else data)
    assert losses(tmp_path / "two", cache) == expected
