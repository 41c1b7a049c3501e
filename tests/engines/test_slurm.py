# SPDX-License-Identifier: Apache-2.0
"""A real Slurm runs the scripts of the documents: one run of two nodes that meets every fault."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import slurm as engine
from tests.engines.slurm import CPUS, KILL_WAIT, ROOT, Slurm, until
from tests.faults.soak import metrics
from tests.integration.train.test_resume import digest, finish
from vit_jax.checkpoints.config import steps_in
from vit_jax.process.startup import HEARTBEAT_TIMEOUT

RUN = (
    f"--config={ROOT}/configs/vit_mu_digits.py",
    "--config.model.dim=16",
    "--config.model.depth=1",
    "--config.model.num_heads=2",
    "--config.model.mlp_dim=32",
    "--config.model.dropout_rate=0.1",
    "--config.data.batch_size=16",
    "--config.duration=240steps",
    "--config.optim.warmup=5steps",
    "--config.checkpoint.every=20steps",
    "--config.checkpoint.keep_best=0",
    "--config.log.every=20steps",
    "--config.log.tensorboard=false",
    "--config.evals.val.every=240steps",
    "--config.evals.test.report=false",
)
HANG = 15  # seconds


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with engine.running(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(workdir, "--config.mesh.data=2", run=RUN)
    return workdir


def script(page: str) -> str:
    """Return the script of a page, whose command is $RUN and whose job asks for no GPU."""
    text = (ROOT / "docs" / page).read_text()
    (found,) = re.findall(r"<!-- sbatch -->\n\n```shell\n(.*?)```", text, re.DOTALL)
    found = re.sub(r" --(gpus-per-node|cpus-per-task)=\d+", "", found)
    return re.sub(r"\.venv/bin/[^\\\n]*(\\\n[^\\\n]*)*", "$RUN", found)


@pytest.mark.slow
def test_a_run_of_two_nodes_goes_on_after_each_fault(
    slurm: Slurm, undisturbed: Path, tmp_path: Path
) -> None:
    workdir, pace = tmp_path / "run", tmp_path / "pace"
    pace.write_text("0.5")  # half a minute of it is less than a third of the run
    run = [sys.executable, "-m", "tests.engines.paced", *RUN, f"--workdir={workdir}"]
    run.append(f"--config.faults.hang_seconds={HANG}")
    env = {"RUN": " ".join(run), "PACE": str(pace), "JAX_NUM_CPU_DEVICES": "1"}
    flags = ("--nodes=2", "--ntasks-per-node=1", "--time=1", "--signal=TERM@10")
    job = slurm.submit(script("scale.md"), *flags, **env)

    def saved() -> int:
        return max(steps_in(workdir / "checkpoints"), default=0)

    def trains() -> None:
        """Wait for another checkpoint."""
        before = saved()
        until(lambda: saved() > before, 90, lambda: f"{slurm.about(job)}\n{slurm.output(job)}")

    # The time limit: Slurm looks at it twice a minute, and signals up to half a minute early.
    slurm.release(job, 1, seconds=120)
    print(time.monotonic(), saved())
    slurm.ask("scontrol", "update", f"job={job}", "TimeLimit=60")
    pace.write_text("0.05")
    trains()
    # A task is killed: srun ends the other one, and with 137.
    os.kill(slurm.tasks(job)[1], signal.SIGKILL)
    slurm.release(job, 2)
    print(time.monotonic(), saved())
    trains()
    # A job of higher priority needs the nodes.
    urgent = slurm.submit("#!/bin/bash", "-p", "urgent", "-N2", f"--ntasks-per-node={CPUS}")
    slurm.wait(urgent, "COMPLETED")
    slurm.release(job, 3)
    print(time.monotonic(), saved())
    trains()
    # A task hangs: the other one says so, and both end.
    began = time.monotonic()
    os.kill(slurm.tasks(job)[1], signal.SIGSTOP)
    slurm.release(job, 4)
    print(time.monotonic(), saved())
    assert time.monotonic() - began < HANG + HEARTBEAT_TIMEOUT + KILL_WAIT
    pace.write_text("0")
    slurm.wait(job, "COMPLETED")
    output = slurm.output(job)
    print(output, time.monotonic())
    assert digest(workdir, RUN) == digest(undisturbed, RUN)
    assert metrics(workdir) == metrics(undisturbed)
