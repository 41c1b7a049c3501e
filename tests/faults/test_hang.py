# SPDX-License-Identifier: Apache-2.0
"""A run that waits for ever ends, and says for what; one that is slow does not."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import painted
from vit_jax.train.report.writers import read_jsonl

ROOT = Path(__file__).parents[2]
SECONDS = 12  # a worker takes some to start
# Longer than is allowed in all: a compilation, and an evaluation whose batches each take less.
SLOW = """
import time
from vit_jax.evals.passes import ticking
from vit_jax.train.health import watchdog
from vit_jax.train.report.goodput import Goodput, Phase

def batches(size):
    for _ in range(6):
        time.sleep(0.2)
        yield {}

clock = Goodput()
batches = ticking(batches, clock.tick)
with watchdog.watch(clock, 0.8):
    with clock.spent(Phase.COMPILE):
        time.sleep(1.2)
    with clock.spent(Phase.EVAL):
        list(batches(1))
    print("evaluated", flush=True)
    with clock.spent(Phase.SAVE):
        time.sleep(60)
"""


def start(*args: str) -> subprocess.Popen:
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    command = [sys.executable, *args]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)


def children(process: int) -> list[int]:
    """List the processes that one has started, and those that they have."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = dict(map(int, line.split()) for line in listed.stdout.splitlines())
    found = [process]
    for of in found:  # which grows
        found += [child for child, parent in parents.items() if parent == of]
    return found[1:]


@pytest.mark.slow
def test_a_worker_that_stands_still(tmp_path: Path) -> None:
    for name in "ab":
        painted.paint(tmp_path / "train" / name, [0, 255])
    process = start(
        "main.py",
        f"--config={painted.__file__}:{tmp_path}",
        f"--workdir={tmp_path / 'run'}",
        f"--config.faults.hang_seconds={SECONDS}",
        "--config.duration=1000000 steps",
        "--config.checkpoint.every=1000000 steps",
        "--config.data.num_workers=1",
    )
    deadline = time.monotonic() + 100
    while not read_jsonl(tmp_path / "run" / "metrics.jsonl") and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = children(process.pid)
    assert workers, process.communicate()[1]
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    process.wait(timeout=100)
    for worker in workers:  # they hold the pipes
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 71, told
    assert "data/stream/batches.py" in told, "where the thread waits"
    assert "train/loop.py" in told
    line = told.splitlines()[-1]
    assert line.startswith(f"error: nothing was finished in {SECONDS} s of waiting for data;")


def test_a_save_that_never_ends_after_slow_but_steady_work() -> None:
    process = start("-c", SLOW)
    said, told = process.communicate(timeout=100)
    assert said == "evaluated\n", told
    assert process.returncode == 71
    assert "of saving a checkpoint;" in told.splitlines()[-1]
