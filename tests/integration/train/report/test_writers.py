# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.config.tree import LogConfig
from vit_jax.train.report import writers

KILLED = """
import os, signal, sys, time
from pathlib import Path
from vit_jax.config import LogConfig
from vit_jax.train.report.writers import make_writer
writer = make_writer(LogConfig(), Path(sys.argv[1]))
for step in range(1, 6):
    writer.write(step, {"train/loss": float(step)})
time.sleep(float(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _kill_one(path, after=0.0):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-c", KILLED, str(path), str(after)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def _events(directory, tag="train/loss"):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="reads the events back; pip install tensorboard",
    )
    reader = accumulator.EventAccumulator(str(directory))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def _steps(path):
    return [row["step"] for row in writers.read_jsonl(path)]


def test_sigkill_loses_no_line(tmp_path):
    _kill_one(tmp_path)
    assert _steps(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5]


def test_sigkill_loses_no_event_older_than_a_second(tmp_path):
    _kill_one(tmp_path, after=2.0)
    assert _events(tmp_path / "tensorboard") == [(s, float(s)) for s in range(1, 6)]


def test_resume_holds_no_step_twice(tmp_path):
    _kill_one(tmp_path, after=2.0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train/lo')  # torn
    writer = writers.make_writer(LogConfig(), tmp_path, step=3)
    assert _steps(tmp_path / "metrics.jsonl") == [1, 2, 3]
    for step in (4, 5, 6):
        writer.write(step, {"train/loss": 10.0 * step})
    writer.close()
    assert _steps(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5, 6]
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0), (6, 60.0)]
    assert _events(tmp_path / "tensorboard") == expected


def test_start_from_nothing_forgets_a_run_that_died_before_its_first_checkpoint(tmp_path):
    _kill_one(tmp_path)
    writer = writers.make_writer(LogConfig(), tmp_path, step=0)
    writer.write(1, {"train/loss": 9.0})
    writer.close()
    assert _steps(tmp_path / "metrics.jsonl") == [1]
    assert _events(tmp_path / "tensorboard") == [(1, 9.0)]


def test_two_event_files_of_one_second(tmp_path):
    for step, value in ((0, 1.0), (1, 2.0), (2, 3.0)):
        writer = writers.TensorBoardWriter(tmp_path, step=step)
        writer.write(step + 1, {"train/loss": value})
        writer.write(step + 2, {"train/loss": 0.0})
        writer.close()
    assert _events(tmp_path) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 0.0)]
