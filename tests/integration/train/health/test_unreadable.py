# SPDX-License-Identifier: Apache-2.0
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.photos import write_folder
from vit_jax import data
from vit_jax.data.order import epoch_order
from vit_jax.train.report.writers import read_jsonl

ROOT = Path(__file__).parents[4]


def start(place: Path, root: Path, port: int, process: int) -> subprocess.Popen:
    overrides = {
        "model.dim": 16,
        "model.depth": 1,
        "model.num_heads": 2,
        "model.num_classes": 3,
        "data.name": f"folder:{root}",
        "data.train_split": "train",
        "data.batch_size": 4,
        "data.max_broken": 2,
        "evals.val.split": "val",
        "evals.test.split": "val",
        "evals.test.report": "false",
        "duration": "4 steps",
        "optim.warmup": "1 steps",
        "log.every": "1 steps",
        "log.tensorboard": "false",
    }
    cluster = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(process),
        "JAX_NUM_CPU_DEVICES": "1",
    }
    return subprocess.Popen(
        [
            sys.executable,
            "main.py",
            "--config=configs/vit_mu_digits.py",
            f"--workdir={place}",
            *(f"--config.{key}={value}" for key, value in overrides.items()),
        ],
        cwd=ROOT,
        env=os.environ | cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_count_together_and_end_together(tmp_path):
    root, place = tmp_path / "photos", tmp_path / "run"
    write_folder(root, {"train": 8, "val": 2}, ("cat", "dog", "emu"))
    source = data.open_source(f"folder:{root}")
    first = epoch_order(24, 0, 0).tolist()
    # The first process meets one in step 1, the second in step 2, and one too many in step 4.
    bad = [first[0], first[6], first[14]]
    for index in bad:
        path = Path(source.example_id(index))
        path.write_bytes(path.read_bytes()[:-40])  # cut behind a header that is whole
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [start(place, root, port, i) for i in range(2)]
    told = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [65, 65], told
    rows = [row for row in read_jsonl(place / "metrics.jsonl") if "data/broken" in row]
    assert [row["data/broken"] for row in rows] == [1, 2, 2]
    # Each warns of its own.
    assert f"warning: {source.example_id(bad[0])}: " in told[0][0]
    assert f"warning: {source.example_id(bad[1])}: " in told[1][1]
    for _, errors in told:
        assert "error: 3 training examples cannot be read, more than data.max_broken=2: " in errors
