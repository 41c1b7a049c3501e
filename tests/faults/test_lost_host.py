# SPDX-License-Identifier: Apache-2.0
"""A run names the host that it waits for; if it loses one, it goes on as if it had never had it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.test_processes import TOLD
from tests.integration.train.test_layouts import by_hand
from tests.integration.train.test_processes import ARGS, CONFIG, ROOT
from tests.integration.train.test_resume import finish
from tests.unit.train.health.test_stragglers import SCALARS
from vit_jax.checkpoints.config import steps_in
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.process.startup import HEARTBEAT_TIMEOUT
from vit_jax.train.report.writers import read_jsonl

STEPS, SAVED = 20, 12
SLOW = 1  # the process that the others wait for
RUN = (
    "--config.data.batch_size=24",  # over 3 or 2
    f"--config.duration={STEPS} steps",
    f"--config.evals.val.every={STEPS} steps",
    f"--config.checkpoint.every={SAVED} steps",
    "--config.log.every=2 steps",
)
ALONE = (f"--config={ROOT}/{CONFIG}", *ARGS[1:], *RUN)  # of this process
# How a process ends whose peer is gone: by itself, or by jax's coordination service (SIGABRT).
LOST = (INTERRUPTED, -signal.SIGABRT)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(workdir, run=ALONE)
    return workdir


def cluster(count: int, workdir: Path) -> list:
    slowed = ("-m", "tests.integration.train.slowed")
    command = [sys.executable, *slowed, f"--workdir={workdir}", *ARGS, *RUN]
    shared = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=shared | env | {"SLOW": "0.5" if index == SLOW else "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index, env in enumerate(by_hand(count))
    ]


def lose(processes: list[subprocess.Popen], workdir: Path) -> None:
    """Kill the last process after the first checkpoint; the others end by themselves."""
    deadline = time.monotonic() + 200
    while not steps_in(workdir / "checkpoints"):
        assert time.monotonic() < deadline
        assert [p.poll() for p in processes] == [None] * len(processes)
        time.sleep(0.05)
    processes[-1].kill()
    limit = HEARTBEAT_TIMEOUT + 60
    outputs = [p.communicate(timeout=limit)[0] for p in processes]
    assert all(p.returncode in LOST for p in processes[:-1]), "\n".join(outputs)
    for output in outputs[:-1]:
        assert "Traceback" not in output, output
    assert any(re.search(TOLD, output) for output in outputs[:-1]), outputs


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the workdir of a run of three of which one was killed."""
    workdir = tmp_path_factory.mktemp("lost") / "run"
    three = cluster(3, workdir)
    try:
        lose(three, workdir)
    finally:
        for process in three:
            process.kill()
    return workdir


@pytest.mark.slow
def test_the_slow_one_is_named(lost: Path) -> None:
    """The first lines tell of the start, where any may be the later."""
    rows = [r for r in read_jsonl(lost / "metrics.jsonl") if "train/loss" in r]
    rows = rows[: SAVED // 2 - 1]  # before the save
    assert [SCALARS[0] in row for row in rows] == [False] + 4 * [True]
    assert [row[SCALARS[0]] for row in rows[3:]] == [SLOW, SLOW]
    assert min(row[SCALARS[1]] for row in rows[3:]) > 0.3


@pytest.mark.slow
def test_a_run_of_three_goes_on_over_those_that_are_left(
    undisturbed: Path, lost: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    shutil.copytree(lost, workdir)
    saved = max(steps_in(workdir / "checkpoints"))
    # Those left are two devices of this process; two processes that go on are test_layouts.py's.
    finish(workdir, "--config.mesh.fsdp=2", run=ALONE)
    output = workdir.with_suffix(".log").read_text()
    assert f"continuing {workdir} at step {saved} of {STEPS}" in output
    assert (
        "now on 2 x cpu (fsdp=2), before on 3 x cpu of 3 processes (data=3): "
        "12 examples a device, 8 before\n"
    ) in output
    rows, expected = (read_jsonl(d / "metrics.jsonl") for d in (workdir, undisturbed))
    assert [r["step"] for r in rows if "train/loss" in r] == list(range(2, STEPS + 1, 2))
    for name in ("train/loss", "train/grad_norm", "val/loss", "test/loss"):
        got, want = ([r[name] for r in x if name in r] for x in (rows, expected))
        assert len(got) > 0
        assert got == pytest.approx(want, abs=1e-5), name
