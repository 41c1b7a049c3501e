# SPDX-License-Identifier: Apache-2.0
"""Sweep files of runs that are over in a second."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
SMALL = {
    "model.dim": 16,
    "model.depth": 1,
    "model.num_heads": 2,
    "model.mlp_dim": 32,
    "data.batch_size": 16,
    "optim.warmup": "10%",
    "log.tensorboard": False,
    "log.every": "50 steps",
    "checkpoint.every": "100 steps",
    "checkpoint.keep_best": 0,
    "evals.test.split": "test[:20]",
    "evals.test.report": False,
    "evals.val.every": "1000 steps",
}


def write(path: Path, body: str, *, metric: str = "val/loss") -> Path:
    """Write a sweep file over the small run; `body` may use `grid` and SMALL."""
    path.write_text(
        "from vit_jax.sweeps import grid\n"
        f"CONFIG = {str(ROOT / 'configs' / 'vit_mu_digits.py')!r}\n"
        f"METRIC = {metric!r}\nSMALL = {SMALL!r}\n{body}"
    )
    return path


def grid_of(path: Path, lrs: tuple[float, ...], *, steps: int = 20) -> Path:
    """Write a sweep over learning rates."""
    body = (
        "def sweep():\n"
        f"    for o in grid.product([SMALL], [{{'duration': '{steps} steps'}}], "
        f"grid.axis('optim.lr', {lrs})):\n        yield o\n"
    )
    return write(path, body)


def start(*args: object) -> subprocess.Popen[str]:
    """Start `vit_jax sweep run`."""
    return subprocess.Popen(
        [sys.executable, "-m", "vit_jax", "sweep", "run", *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], status: int = 0) -> str:
    """Wait for a process; returns what it printed."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == status, out + err
    return out


def wait_until(what: object, seconds: float = 120.0) -> None:
    """Wait until `what()` is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def manifest(place: Path) -> list[dict]:
    """Read the manifest as plain JSON."""
    return [json.loads(line) for line in (place / "manifest.jsonl").read_text().splitlines()]
