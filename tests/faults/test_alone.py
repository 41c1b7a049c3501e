# SPDX-License-Identifier: Apache-2.0
"""No terminal, no network, no TensorFlow: training, evaluation and prediction work all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Any connection is refused; where TensorFlow or PyTorch are installed, they stay unread.
CODE = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
from vit_jax.__main__ import main as verb
from vit_jax.cli.train import main as train
run, images = sys.argv[1], "docs/images/digits"
cut = ["dim=16", "depth=1", "num_heads=2", "mlp_dim=32", "scan_unroll=1"]
for command in (
    lambda: train(["main.py", "--config=configs/vit_mu_digits.py", f"--workdir={run}",
                   "--config.duration=3 steps", "--config.optim.warmup=1 steps",
                   "--config.log.every=1 steps", *(f"--config.model.{x}" for x in cut)]),
    lambda: verb(["vit_jax", "evaluate", f"--from={run}"]),
    lambda: verb(["vit_jax", "predict", f"--from={run}", images, "--top=1"]),
):
    assert command() == 0
assert not {"tensorflow", "torch"} & set(sys.modules)
"""


@pytest.mark.slow
def test_alone(tmp_path: Path) -> None:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("TERM", "COLUMNS"))}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "run")],
        cwd=ROOT,
        env={
            **keep,
            "PYTHONPATH": str(ROOT),
            "JAX_NUM_CPU_DEVICES": "1",
            "TFDS_DATA_DIR": str(tmp_path / "data"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    written = done.stdout + done.stderr
    assert "Traceback" not in written
    assert not set("\r\x1b\b") & set(written)
    lines = written.splitlines()
    assert all(len(line) < 200 for line in lines)
    assert any(line.startswith("step 3/3  100%  test: loss") for line in lines), written
    assert sum(line.startswith("docs/images/digits/") for line in lines) >= 4, written
