# SPDX-License-Identifier: Apache-2.0
"""Two processes with one device each start from what others computed, and compute what one does.

Going on, to the bit, they are in tests/engines/test_slurm.py, and in test_layouts.py.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.weights.runs import save
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

ROOT = Path(__file__).parents[3]
CONFIG = "configs/vit_mu_digits.py"
ARGS = (
    f"--config={CONFIG}",
    "--config.model.dim=16",
    "--config.model.depth=1",
    "--config.model.num_heads=2",
    "--config.model.mlp_dim=32",
    "--config.data.batch_size=16",
    "--config.data.mix.mixup_alpha=0.2",
    "--config.duration=8 steps",
    "--config.optim.warmup=2 steps",
    "--config.checkpoint.every=4 steps",
    "--config.log.every=1 steps",
    "--config.log.tensorboard=false",
    "--config.evals.val.every=4 steps",
    "--config.evals.val.batch_size=50",
    "--config.evals.test.report=false",
)


def start(workdir: Path | str, devices: int, *args: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "main.py", f"--workdir={workdir}", *ARGS, *args],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_two(workdir: Path, *args: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    processes = [start(workdir, 1, *args, **cluster, JAX_PROCESS_ID=str(i)) for i in range(2)]
    outputs = [p.communicate(timeout=240)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(outputs)
    return outputs


@pytest.mark.slow
def test_weights_of_another_run_are_the_same_start_for_two(tmp_path: Path) -> None:
    args = ("--config.duration=6 steps", "--config.seed=1", "--config.ema_decay=0.5")
    # On features of random numbers the loss first grows: both stop at step 2, and end with step 1.
    args += ("--config.evals.val.every=1 steps", "--config.checkpoint.patience=1")
    args += ("--config.checkpoint.metric=val/loss", "--config.checkpoint.mode=min")
    args += (f"--config.init.weights=ckpt:{tmp_path / 'source'}",)
    args += ("--config.init.skip=('head/.*',)", "--config.evals.test.report=true")
    argv = ["main.py", *ARGS, *args, "--config.mesh.data=1"]
    cfg = cli_flags.read_config(argv)
    save(tmp_path / "source", cfg.model, {1: None})
    fit(cfg, tmp_path / "one")
    fsdp = ("--config.mesh.data=1", "--config.mesh.fsdp=2")
    outputs = run_two(tmp_path / "two", *args, *fsdp)
    assert "starting from" in outputs[0]
    assert "stopped early at step 2: " in outputs[0]
    assert outputs[0].count("restored step 1") == 1
    for word in ("step", "starting from"):
        assert word not in outputs[1], "only the first process speaks"
    assert (tmp_path / "two" / "test" / "confusion.csv").exists()
    rows, expected = (read_jsonl(tmp_path / d / "metrics.jsonl") for d in ("two", "one"))
    names = ("train/loss", "train/grad_norm", "val/loss", "val/top1", "val_ema/loss")
    for name in (*names, "test/loss", "test_ema/loss", "test/num_examples"):
        got, want = ([r[name] for r in x if name in r] for x in (rows, expected))
        assert len(got) > 0
        assert got == pytest.approx(want, abs=1e-5), name
