# SPDX-License-Identifier: Apache-2.0
"""Kill a run whose workdir and data are in a bucket, again and again; compare it with a local one.

    python -m tests.faults.bucket_soak --kills=10 [--seed=N]

The bucket is an emulated one that is slow, refuses requests and loses answers. Some starts are on a
new host: the staging directory is gone, and the bucket is all there is. Exit status 0: parameters,
optimizer state, PRNG key and metrics equal those of a run on disk, to the bit, and a reader of the
bucket finds the last checkpoint.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bucket import Bucket
from tests.faults.soak import ARGS, ROOT, metrics
from tests.integration.train.test_resume import digest
from vit_jax.data.sources import digits
from vit_jax.errors import UserError
from vit_jax.process.preemption import INTERRUPTED

FAULTS = {"latency_ms": 5, "refused": 0.03, "lost": 0.02}
# A dead host's lock expires sooner than by default, for the sake of the test's time.
MAIN = """
import sys
from vit_jax.cli.train import main
from vit_jax.workdir import lock
lock.BEAT, lock.LEASE = 0.5, 4.0
sys.exit(main(["main.py", *sys.argv[1:]]))
"""
NAME = "bucket/runs/soaked"


class Soak:
    """Starts one run again and again; `counts` says what happened."""

    def __init__(self, scratch: Path, args: tuple[str, ...], bucket: Bucket) -> None:
        self.scratch, self.args = scratch, args
        self.env = {**os.environ, **bucket.env, "JAX_NUM_CPU_DEVICES": "1"}
        self.env["XDG_CACHE_HOME"] = str(scratch / "cache")
        self.staging = scratch / "cache" / "vit_jax" / "workdirs" / "gs" / NAME
        self.log = scratch / "log"
        self.counts = {"SIGKILL": 0, "SIGTERM": 0, "new host": 0}

    def start(self, workdir: str) -> subprocess.Popen:
        """Start the run, or continue it; what it prints goes to the end of the log."""
        command = [sys.executable, "-c", MAIN, f"--workdir={workdir}", *self.args]
        with self.log.open("a") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=log, stderr=log)

    def disturb(self, rng: random.Random, number: int, lines: int) -> bool:
        """Start the run and kill it, every second time after some seconds, else after so many
        lines at most.

        Returns whether it had finished before.
        """
        until = self._said() + (0 if number % 2 else rng.randint(1, lines))
        process = self.start(f"gs://{NAME}")
        while process.poll() is None and self._said() < until:
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.0, 6.0 if number % 2 else 0.5))
            assert process.returncode == 0, self.log.read_text()[-4000:]
            return True
        kind = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        process.send_signal(kind)
        status = process.wait(timeout=60)
        assert status in (0, -kind, INTERRUPTED), self.log.read_text()[-4000:]
        self.counts[kind.name] += 1
        if rng.random() < 0.5:
            shutil.rmtree(self.staging, ignore_errors=True)
            self.counts["new host"] += 1
        return False

    def _said(self) -> int:
        """Count the lines of steps so far."""
        return self.log.read_text().count("\nstep ") if self.log.exists() else 0


def soak(scratch: Path, *, kills: int, steps: int, seed: int, share: float = 1.0) -> str:
    """Kill a run so many times; returns what was done. Raises AssertionError: a bit differs.

    `share` is of the requests that fail by default.
    """
    rng = random.Random(seed)
    (scratch / "data").mkdir()
    version = digits.prepare(scratch / "data").name
    args = (*ARGS, f"--config.duration={steps} steps", f"--config.data.name=digits:{version}")
    with Bucket() as bucket:
        run = Soak(scratch, args, bucket)
        run.env["TFDS_DATA_DIR"] = str(scratch / "data")
        local, began = run.start(str(scratch / "local")), time.monotonic()
        assert local.wait(timeout=300) == 0, run.log.read_text()
        bucket.put_tree(scratch / "data", "bucket/data")
        run.env["TFDS_DATA_DIR"] = "gs://bucket/data"
        bucket.set(**{name: rate * share for name, rate in FAULTS.items()}, seed=seed)
        for number in range(kills):
            if run.disturb(rng, number, max(steps // 10 // kills, 1)):
                break
        first = run.start(f"gs://{NAME}")
        while first.poll() is None and not bucket.names(f"{NAME}/.lock"):
            time.sleep(0.1)
        run.env["XDG_CACHE_HOME"] = str(scratch / "other")  # a second host at the same time
        second = run.start(f"gs://{NAME}")
        ends = sorted(process.wait(timeout=300) for process in (first, second))
        assert ends in ([0, 0], [0, UserError.status]), run.log.read_text()[-4000:]
        seconds = time.monotonic() - began
        bucket.set()
        copy = scratch / "copy"
        for name in bucket.names(NAME):
            file = copy / name.removeprefix(f"{NAME}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bucket.get(name) or b"")
        assert (copy / "finished.json").exists()
        assert digest(copy, args) == digest(scratch / "local", args), f"seed {seed}"
        ours = [
            {name: value for name, value in row.items() if not name.startswith("run/")}
            for row in metrics(copy)
        ]
        assert [row for row in ours if len(row) > 1] == metrics(scratch / "local"), f"seed {seed}"
        requests = bucket.stats()["requests"]
    done = ", ".join(f"{name} {count}" for name, count in run.counts.items())
    return f"{steps} steps in {seconds:.0f} s, equal to the bit; {done}, requests {requests:,}"


def main() -> None:
    """Soak, and say what was done."""
    parser = argparse.ArgumentParser(description="Kill a run in a bucket.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3000, help="of the run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bucket_soak") as scratch:
        print(soak(Path(scratch), kills=asked.kills, steps=asked.steps, seed=asked.seed))


if __name__ == "__main__":
    main()
