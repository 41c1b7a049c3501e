# SPDX-License-Identifier: Apache-2.0
"""A run of two nodes by the script of docs/scale.md, which is disturbed and goes on."""

import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from os import kill
from pathlib import Path

from tests.engines.s3 import S3
from tests.engines.slurm import CPUS, ROOT, Slurm, until
from tests.faults.soak import metrics
from tests.integration.train.test_resume import SMALL, digest
from vit_jax.checkpoints.config import steps_in

STEPS = 160
RUN = (
    *SMALL,
    "--config.model.dropout_rate=0.1",
    f"--config.duration={STEPS}steps",
    "--config.optim.warmup=5steps",
    "--config.checkpoint.every=10steps",
    "--config.checkpoint.keep_best=0",
    "--config.log.every=10steps",
    "--config.log.tensorboard=false",
    f"--config.evals.val.every={STEPS}steps",
    "--config.evals.test.report=false",
)
HANG = 15  # seconds without progress after which a run ends
_TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")


def script(page: str) -> str:
    """Return the script of a page, whose command is $RUN and whose job asks for no GPU."""
    text = (ROOT / "docs" / page).read_text()
    (found,) = re.findall(r"<!-- sbatch -->\n\n```shell\n(.*?)```", text, re.DOTALL)
    found = re.sub(r" --(gpus-per-node|cpus-per-task)=\d+", "", found)
    return re.sub(r"\.venv/bin/[^\\\n]*(\\\n[^\\\n]*)*", "$RUN", found)


class Job:
    """The run in Slurm: each batch takes `pace` seconds more, until the run is let go."""

    def __init__(
        self, slurm: Slurm, scratch: Path, workdir: str, pace: float, *flags: str, **env: str
    ) -> None:
        self.slurm, self.restarts, self._pace = slurm, 0, scratch / "pace"
        self.hold(pace)
        run = [sys.executable, "-m", "tests.engines.paced", *RUN, f"--workdir={workdir}"]
        run.append(f"--config.faults.hang_seconds={HANG}")
        env |= {"RUN": " ".join(run), "PACE": str(self._pace), "JAX_NUM_CPU_DEVICES": "1"}
        self.number = slurm.submit(script("scale.md"), *_TWO_NODES, *flags, **env)

    def hold(self, pace: float) -> None:
        """Set the pace."""
        self._pace.write_text(str(pace))

    def why(self) -> str:
        """Return what Slurm says of the job, and what it has printed."""
        return f"{self.slurm.about(self.number)}\n{self.slurm.output(self.number)}"

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a task once both are there."""
        until(lambda: len(self.slurm.tasks(self.number)) == 2, 60, self.why)
        kill(self.slurm.tasks(self.number)[rank], number)

    def preempt(self) -> None:
        """Have a job of higher priority need the nodes for a moment."""
        whole = ("-N2", f"--ntasks-per-node={CPUS}")
        urgent = self.slurm.submit("#!/bin/bash", "-p", "urgent", *whole)
        self.slurm.wait(urgent, "COMPLETED")

    def returns(self, seconds: float = 90) -> None:
        """Wait until the job is in the queue once more, by its script or by Slurm."""
        self.restarts += 1
        self.slurm.returned(self.number, self.restarts, seconds)

    def goes_on(self) -> None:
        """Let the job start anew, at once and not in two minutes."""
        self.slurm.release(self.number)

    def ends(self) -> None:
        """Hold the run no longer, and wait for its end."""
        self.hold(0)
        self.slurm.wait(self.number, "COMPLETED", seconds=180)


def equal(run: Path, reference: Path) -> None:
    """Compare every bit of the last state, and every number of the metrics."""
    assert max(steps_in(run / "checkpoints")) == STEPS
    assert digest(run, RUN) == digest(reference, RUN)
    found = [
        {name: value for name, value in row.items() if not name.startswith("run/")}
        for row in metrics(run)
    ]
    assert [row for row in found if len(row) > 1] == metrics(reference)


def soak(
    slurm: Slurm,
    s3: S3,
    scratch: Path,
    reference: Path,
    *,
    seed: int,
    kinds: Sequence[str],
    times: int,
) -> str:
    """Disturb a run whose workdir is in a bad bucket so many times; returns what was done.

    Each node has a disk of its own, and sometimes a new one. `kinds` are drawn from: names of
    signals to one task, "scancel" (SIGTERM to all), "preempted". Raises AssertionError: a bit
    differs.
    """
    rng, began = random.Random(seed), time.monotonic()
    name, caches = f"bucket/runs/{seed}", scratch / "caches"
    s3.set(latency_ms=5, refused=0.03, lost=0.03, seed=seed)
    env = {**s3.env, "CACHES": str(caches)}
    job = Job(slurm, scratch, f"s3://{name}", 0.3, **env)
    done: dict[str, int] = {}
    for _ in range(times):
        kind = rng.choice(kinds)
        slurm.wait(job.number, "RUNNING")
        time.sleep(rng.uniform(2, 25))  # at any moment of a start, or between two steps
        if kind == "scancel":
            slurm.signal(job.number, "TERM")
        elif kind == "preempted":
            job.preempt()
        else:
            job.signal(rng.randrange(2), signal.Signals[kind])
        job.returns()
        done[kind] = done.get(kind, 0) + 1
        if rng.random() < 0.5:
            shutil.rmtree(caches / f"127.0.0.{rng.choice((1, 2))}", ignore_errors=True)
            done["new disk"] = done.get("new disk", 0) + 1
        job.goes_on()
    job.ends()
    s3.set()
    s3.copy(name, scratch / "copy")
    equal(scratch / "copy", reference)
    told = ", ".join(f"{kind} {count}" for kind, count in {**done, **s3.counts}.items())
    return f"seed {seed}: {STEPS} steps in {time.monotonic() - began:.0f} s, equal bits; {told}"
