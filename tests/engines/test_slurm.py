# SPDX-License-Identifier: Apache-2.0
"""A real Slurm and a real S3 server run the scripts of the documents, and meet every fault."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import jobs, s3
from tests.engines import slurm as engine
from tests.engines.jobs import HANG, RUN, Job
from tests.engines.slurm import KILL_WAIT, Slurm, until
from tests.integration.sweeps.test_worker import runs_of
from tests.integration.train.test_resume import finish
from tests.unit.sweeps import files
from vit_jax.checkpoints.config import steps_in
from vit_jax.cli.sweep import main
from vit_jax.process.startup import HEARTBEAT_TIMEOUT
from vit_jax.sweeps import point, results
from vit_jax.sweeps.results import State


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with engine.running(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(workdir, run=RUN)  # on two of this process's devices
    return workdir


@pytest.mark.slow
def test_a_run_of_two_nodes_goes_on_after_each_fault(
    slurm: Slurm, undisturbed: Path, tmp_path: Path
) -> None:
    """A task is killed in the test below."""
    workdir = tmp_path / "run"
    # At this pace a minute is less than half of the run.
    job = Job(slurm, tmp_path, str(workdir), 1.0, "--time=1", "--signal=TERM@10")

    def trains() -> None:
        """Wait for another checkpoint."""
        before = max(steps_in(workdir / "checkpoints"))
        until(lambda: max(steps_in(workdir / "checkpoints")) > before, 120, job.why)

    # The time limit: Slurm looks at it twice a minute, and signals up to half a minute early.
    job.returns()
    slurm.ask("scontrol", "update", f"job={job.number}", "TimeLimit=60")
    job.hold(0.05)
    job.goes_on()
    trains()
    # A job of higher priority needs the nodes.
    job.preempt()
    job.returns()
    job.goes_on()
    trains()
    # A task hangs: the other one says so, and both end.
    began = time.monotonic()
    job.signal(1, signal.SIGSTOP)
    job.returns()
    assert time.monotonic() - began < HANG + HEARTBEAT_TIMEOUT + KILL_WAIT
    job.goes_on()
    job.ends()
    output = slurm.output(job.number)
    assert "stopped by a preemption notice: saved step" in output
    assert f"nothing was finished in {HANG} s" in output
    assert "Traceback" not in output
    jobs.equal(str(workdir), workdir, undisturbed)


@pytest.mark.slow
def test_a_run_in_a_bad_bucket_killed_at_random(
    slurm: Slurm, undisturbed: Path, tmp_path: Path
) -> None:
    """A task is killed: srun ends the other one, and with 137; a node has a new disk."""
    with s3.running(tmp_path / "moto") as server:
        given = {"seed": 3, "kinds": ("SIGKILL",), "times": 1}
        done = jobs.soak(slurm, server, tmp_path, undisturbed, **given)
    assert "SIGKILL 1, new disk 1" in done
    # Which kinds of faults are drawn depends on how many requests there are, and so on the time.
    faults = sum(count for kind, count in server.counts.items() if kind != "requests")
    assert faults > 10, server.counts


# What differs on the second host.
_ODD = """
import os, sys, time
from vit_jax.cli import doctor
from vit_jax.cli.checks import cluster, machine
if os.environ["SLURM_PROCID"] == "1":
    now, timed, version = time.time, cluster._timed, machine.version_of
    time.time = lambda: now() + 100
    cluster._timed = lambda work: 3 * timed(work)
    machine.version_of = lambda name: "0.0" if name == "flax" else version(name)
sys.exit(doctor.main(["doctor"]))
"""
_BESIDE = """
import time
from vit_jax.devices import hosts
from vit_jax.process import startup
startup.join_cluster()
import jax
print("met", hosts.gather(jax.process_index()), flush=True)
time.sleep(10)
"""


@pytest.mark.slow
def test_two_steps_at_once_and_a_doctor_of_two_hosts(slurm: Slurm, tmp_path: Path) -> None:
    lines = ["#!/bin/bash", "export JAX_NUM_CPU_DEVICES=1"]
    for name, code in (("odd", _ODD), ("beside", _BESIDE)):
        (tmp_path / f"{name}.py").write_text(code)
        step = ["srun", "--overlap", sys.executable, f"{tmp_path}/{name}.py"]
        lines.append(f"{shlex.join(step)} > {tmp_path}/{name}.txt & {name}=$!")
    lines += ["wait $odd; echo odd $?", "wait $beside; echo beside $?"]
    job = slurm.submit("\n".join(lines), "--nodes=2", "--ntasks-per-node=1")
    slurm.wait(job, "COMPLETED", "FAILED")
    assert "odd 1\nbeside 0\n" in slurm.output(job)
    assert (tmp_path / "beside.txt").read_text().count("met [0, 1]") == 2
    told = (tmp_path / "odd.txt").read_text()
    second = "process 1 on 127.0.0.2"
    for line in (
        "packages     broken   flax 0.0",  # by itself, before they have met
        f"hosts        broken   {second} has flax 0.0, not ",
        f"clocks       warning  the clock of {second} is +100.",
        "step         ok       a tiny ViT trains",
        f"speed        warning  {second} does the same work in ",
        "mesh {'data': 2, 'fsdp': 1, 'tensor': 1}: 16.8 MB summed over data (2) in ",
        "6 ok, 2 warning, 1 broken",
    ):
        assert line in told, told


@pytest.mark.slow
def test_a_sweep_as_an_array(slurm: Slurm, tmp_path: Path) -> None:
    body = (
        "def sweep():\n"
        f"    yield {{**SMALL, 'duration': '10 steps', 'data.name': 'folder:{tmp_path}/none'}}\n"
        "    yield {**SMALL, 'duration': '1200 steps'}\n"
    )
    place = tmp_path / "out"
    sweep = files.write(tmp_path / "two.py", body)
    assert main(["vit_jax sweep", "plan", str(sweep), f"--out={place}"]) == 0
    run = f"{sys.executable} -m vit_jax sweep run {place} --index=$SLURM_ARRAY_TASK_ID"
    text = jobs.script("scaling.md").replace("$RUN", run)
    job = slurm.submit(text, "--array=0-2", "--time=60", JAX_NUM_CPU_DEVICES="1")
    # The worker of the second point is killed: its task goes back into the queue, and goes on.
    second, points = f"{job}_1", point.read_manifest(place)
    saved = points[1].workdir(place) / "checkpoints"
    until(lambda: bool(steps_in(saved)), 120, lambda: slurm.output(job))
    number = int(slurm.about(second)["JobId"])
    worker = slurm.tasks(number)[0]
    for process in (*runs_of(worker), worker):  # as where a node is lost
        os.kill(process, signal.SIGKILL)
    slurm.returned(second, 1)
    slurm.release(second)
    states = ["FAILED", "COMPLETED", "FAILED"]  # the last has no point
    for index, state in enumerate(states):
        slurm.wait(f"{job}_{index}", state)
    output = slurm.output(job)
    for told in ("1 failed", "1 finished", "has lines 0 to 1"):
        assert told in output, output
    assert "continuing" in (points[1].workdir(place) / "output.txt").read_text()
    found = [outcome.state for outcome in results.read(place, points)]
    assert found == [State.FAILED, State.FINISHED]
