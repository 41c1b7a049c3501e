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
from tests.integration.train.test_resume import SMALL
from vit_jax.checkpoints import reader
from vit_jax.process.startup import SHUTDOWN_TIMEOUT
from vit_jax.workdir.mirror import GRACE

STEPS = 160
RUN = (
    *SMALL,
    "--config.mesh.fsdp=2",  # of each array a part on each node
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
        whole = self._pace.with_suffix(".new")  # the run reads it at any moment
        whole.write_text(str(pace))
        whole.replace(self._pace)

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


def equal(run: str, rows: Path, reference: Path) -> None:
    """Compare the digests of all arrays of the last state, and every number of the metrics.

    `rows` is a folder with the run's metrics, where `run` is in a bucket.
    """
    found, wanted = reader.find(run), reader.find(reference)
    assert found.step == wanted.step == STEPS
    assert found.manifest.leaves == wanted.manifest.leaves
    of_training = [
        {name: value for name, value in row.items() if not name.startswith("run/")}
        for row in metrics(rows)
    ]
    assert [row for row in of_training if len(row) > 1] == metrics(reference)


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
    s3.set(latency_ms=5, refused=0.03, lost=0.06, seed=seed)
    env = {**s3.env, "CACHES": str(caches)}
    job = Job(slurm, scratch, f"s3://{name}", 0.3, **env)
    done: dict[str, int] = {}
    for number in range(times):
        kind = rng.choice(kinds)
        if number % 2 == 0:  # while it trains; else at any moment of its start, or later
            marks = len(s3.names(f"{name}/checkpoints/"))
            until(lambda: len(s3.names(f"{name}/checkpoints/")) != marks, 120, job.why)  # noqa: B023
        time.sleep(rng.uniform(0, 15 if number % 2 else 3))
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
    # The run ends while nobody answers, and is told to stop as it waits for that.
    for said in ("\nstep ", "\ngoodput "):  # of this start: it trains; it has reported
        before = slurm.output(job.number).count(said)
        until(lambda: slurm.output(job.number).count(said) > before, 180, job.why)  # noqa: B023
        s3.set(away=True)
        job.hold(0)
    time.sleep(2)
    slurm.signal(job.number, "TERM")
    told = time.monotonic()
    job.returns()
    waited = time.monotonic() - told
    assert waited < GRACE + SHUTDOWN_TIMEOUT, job.why()
    s3.set()
    job.goes_on()
    job.ends()
    (scratch / "metrics.jsonl").write_bytes(s3.get(f"{name}/metrics.jsonl") or b"")
    equal(f"s3://{name}", scratch, reference)
    parts = [f"{kind} {count}" for kind, count in {**done, **s3.counts}.items()]
    parts.append(f"ended {waited:.0f} s after SIGTERM in the last wait")
    took = f"{STEPS} steps in {time.monotonic() - began:.0f} s"
    return f"seed {seed}: {took}, equal bits; {', '.join(parts)}"
