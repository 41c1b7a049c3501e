# SPDX-License-Identifier: Apache-2.0
"""A run that is over: started again, with another config; what it leaves.

Runs that are killed and continued: tests/smoke/test_runs.py, by what is here, and those of each
objective.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.unit.train.test_early_stop import config
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.cli.train import main
from vit_jax.devices import hardware, sharding
from vit_jax.models import DType
from vit_jax.train import build as build_lib
from vit_jax.train.begin import open_run
from vit_jax.train.report.writers import read_jsonl

ROOT = Path(__file__).parents[3]
STEPS = 60
SMALL = (
    f"--config={ROOT}/configs/vit_mu_digits.py",
    "--config.model.dim=16",
    "--config.model.depth=1",
    "--config.model.num_heads=2",
    "--config.model.mlp_dim=32",
    "--config.data.batch_size=16",
)
ARGS = (
    *SMALL,
    "--config.model.dropout_rate=0.1",
    f"--config.duration={STEPS} steps",
    "--config.optim.warmup=5 steps",
    "--config.checkpoint.every=5 steps",
    "--config.checkpoint.keep_best=0",
    "--config.log.every=1 steps",
    "--config.log.tensorboard=false",
    "--config.evals.val.every=20 steps",
)


def start(workdir: Path, *args: str, run: tuple[str, ...] = ARGS) -> subprocess.Popen:
    command = ["main.py", f"--workdir={workdir}", *run, *args]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    log = open(workdir.with_suffix(".log"), "a")  # noqa: SIM115  (the process holds it)
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, stdout=log, stderr=log)


def finish(workdir: Path, *args: str, run: tuple[str, ...] = ARGS) -> None:
    """Train to the end in this process, on one of its devices."""
    words = ["main.py", f"--workdir={workdir}", *run, "--config.mesh.data=1", *args]
    with (
        open(workdir.with_suffix(".log"), "a") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        status = main(words)
    assert status == 0, workdir.with_suffix(".log").read_text()


def digest(workdir: Path, run: tuple[str, ...] = ARGS) -> str:
    """Hash every byte of the last checkpoint's state."""
    from vit_jax.cli.parsing import flags

    argv = ["main.py", *run]
    cfg = flags.read_config(argv)
    cfg.mesh.data = 1
    parts = build_lib.build(cfg, num_examples=1293)
    abstract = build_lib.abstract_state(parts, sharding.make_mesh(cfg.mesh))
    checkpoints = Checkpointer(workdir / "checkpoints", cfg.checkpoint)
    restored = checkpoints.restore_step(abstract, parts.plan.total_steps)
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(restored.state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        sha.update(np.asarray(leaf).tobytes())
    return sha.hexdigest()


def last_step(workdir: Path) -> int:
    rows = read_jsonl(workdir / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def wait_for_step(process: subprocess.Popen, workdir: Path, step: int) -> None:
    deadline = time.monotonic() + 150
    while process.poll() is None and last_step(workdir) < step:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("reference") / "run"
    finish(workdir)
    return workdir


def call(workdir: Path, *args: str) -> int:
    return main(["main.py", f"--workdir={workdir}", *ARGS, "--config.mesh.data=1", *args])


def test_a_finished_run_says_so(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # What changes no number is free to change.
    assert call(reference, "--config.log.every=3 steps", "--config.data.prefetch=4") == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("dtype, said", [("bfloat16", True), ("float32", False)])
def test_a_run_in_bfloat16_says_that_float32_is_faster_here(
    dtype: str,
    said: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "_cpu_info", frozenset)
    cfg = config()
    cfg.model = dataclasses.replace(cfg.model, dtype=DType(dtype))
    open_run(cfg, tmp_path / "run")
    line = "float32 is faster than bfloat16 on this CPU: model.dtype=float32"
    assert (line in capsys.readouterr().out.splitlines()) == said


def test_another_config_is_refused_with_what_differs(
    reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(reference, "--config.optim.lr=0.5") == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert "optim.lr: 0.004 -> 0.5" in line


def test_workdir_holds_what_a_person_expects(reference: Path) -> None:
    names = {path.name for path in reference.iterdir()}
    expected = {"config.json", "classes.json", "metrics.jsonl", "checkpoints", "learning_curve.png"}
    assert expected <= names
    assert json.loads((reference / "classes.json").read_text()) == [str(i) for i in range(10)]
    assert {p.name for p in (reference / "test").iterdir()} == {
        "confusion.csv",
        "confusion.png",
        "per_class.csv",
    }
