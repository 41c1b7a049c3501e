# SPDX-License-Identifier: Apache-2.0
"""A program that ends in any way leaves no worker process and prints no foreign traceback."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

SCRIPT = """
import os, sys, signal, time
from vit_jax import data
if __name__ == "__main__":
    source = data.open_source("folder:" + sys.argv[1])
    cfg = data.DataConfig(batch_size=4, num_workers=1, num_threads=1)
    views = data.one_view(cfg.transform, (8, 8), 3)
    batches = data.train_batches(source, cfg, views=views, seed=0)
    next(batches)
    signal.signal(signal.SIGTERM, lambda *_: None)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(9):
        next(batches)
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def program(folder, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def workers(process) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def test_workers_outlast_the_jobs_sigterm_and_end_with_the_program(program):
    (worker,) = workers(program)
    os.killpg(program.pid, signal.SIGTERM)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"
    _, errors = program.communicate("\n", timeout=20)
    assert program.returncode == 0
    assert "Traceback" not in errors
    assert not worker.is_running()


def test_workers_end_when_the_program_is_killed(program):
    (worker,) = workers(program)
    program.kill()
    deadline = time.monotonic() + 10
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker process is still there"
        time.sleep(0.05)
