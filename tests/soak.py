# SPDX-License-Identifier: Apache-2.0
"""Disturb a run at random for some minutes, and compare it with an undisturbed one, bit for bit.

    python -m tests.soak --minutes=20 [--seed=N]

Processes are killed (SIGKILL), told to stop (SIGTERM), stopped and continued (SIGSTOP), find the
disk full, and find their newest checkpoint damaged when they start again. Exit status 0: the
parameters, optimizer state, PRNG key and every line of the metrics equal those of the reference.
"""

import argparse
import collections
import contextlib
import errno
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.train.test_resume import ROOT, SMALL, digest
from vit_jax.errors import CANNOT_SAVE
from vit_jax.train.stop import INTERRUPTED
from vit_jax.train.workdir import finished_step
from vit_jax.train.writers import read_jsonl

STEPS = 3000
ARGS = (
    *SMALL,
    "--config.model.dropout_rate=0.1",
    f"--config.duration={STEPS} steps",
    "--config.optim.warmup=5 steps",
    "--config.checkpoint.every=50 steps",
    "--config.checkpoint.keep=4",
    "--config.checkpoint.keep_best=0",
    "--config.log.every=10 steps",
    "--config.log.tensorboard=false",
    "--config.evals.val.every=500 steps",
)
# Of a start and of the steps after it, in seconds: a fault comes anywhere in between.
LATEST = 12.0


def start(workdir: Path, log: Path) -> subprocess.Popen:
    """Start the run, or continue it; what it prints goes to the end of `log`."""
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "main.py", f"--workdir={workdir}", *ARGS]
    with log.open("a") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=file)


class Soak:
    """One run that is disturbed; `counts` says how often by what."""

    def __init__(self, workdir: Path, log: Path, disk: Path | None, rng: random.Random) -> None:
        """Take the run's directory and, where that lies on a disk of its own, the disk."""
        self.workdir, self.log, self.disk, self.rng = workdir, log, disk, rng
        self.counts: collections.Counter[str] = collections.Counter()
        self.damaged: set[str] = set()

    def run(self, until: float) -> None:
        """Start the run again and again, undisturbed after `until`, until it has finished."""
        while True:
            process = start(self.workdir, self.log)
            self.counts["starts"] += 1
            expected = self._disturb(process, until)
            status = process.wait(timeout=300)
            if status == 0:
                return
            if status not in expected:
                log = self.log.read_text()[-4000:]
                sys.exit(f"status {status}, where {sorted(expected)} were expected:\n{log}")
            if time.monotonic() < until and self.rng.random() < 0.4:
                self._damage()

    def _disturb(self, process: subprocess.Popen, until: float) -> set[int]:
        """Do something to a process until it ends; returns the statuses it may end with."""
        expected = {0}
        while time.monotonic() < until:
            if _ends_in(process, self.rng.uniform(0.2, LATEST)):
                return expected
            fault = self.rng.choice(["SIGKILL", "SIGTERM", "SIGSTOP", "full disk"])
            self.counts[fault] += 1
            if fault == "SIGKILL":
                process.kill()
                return {-signal.SIGKILL, 0}
            if fault == "SIGTERM":  # before Python has its handler, the signal just ends it
                process.terminate()
                return expected | {INTERRUPTED, -signal.SIGTERM}
            if fault == "SIGSTOP":
                process.send_signal(signal.SIGSTOP)
                time.sleep(self.rng.uniform(0.5, 3))
                process.send_signal(signal.SIGCONT)
            else:
                expected |= {CANNOT_SAVE}
                with self._no_room(process):
                    _ends_in(process, self.rng.uniform(0.5, 3))
        return expected

    @contextlib.contextmanager
    def _no_room(self, process: subprocess.Popen) -> Iterator[None]:
        """Fill the disk; where mounting one is not allowed, forbid the process to write more."""
        if self.disk is None:
            before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, -1))
            yield
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
            return
        ballast = self.disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        yield
        ballast.unlink()

    def _damage(self) -> None:
        """Flip a byte of the newest checkpoint, cut a file or delete one; an older one stays."""
        if finished_step(self.workdir) is not None:  # killed at its very end: nothing follows
            return
        place = self.workdir / "checkpoints"
        steps = [e for e in place.iterdir() if e.name.isdecimal()] if place.is_dir() else []
        intact = sorted((e for e in steps if e.name not in self.damaged), key=lambda e: int(e.name))
        if len(intact) < 2:
            return
        file = self.rng.choice(sorted(p for p in intact[-1].rglob("*") if p.is_file()))
        how = self.rng.choice(["flipped byte", "cut file", "deleted file"])
        data = bytearray(file.read_bytes())
        if how == "deleted file" or not data:
            file.unlink()
        elif how == "cut file":
            file.write_bytes(data[: len(data) // 2])
        else:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            file.write_bytes(data)
        self.damaged.add(intact[-1].name)
        self.counts[how] += 1

    def forget(self) -> None:
        """Remove the run, for the next."""
        shutil.rmtree(self.workdir)
        self.damaged.clear()


def _ends_in(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextlib.contextmanager
def _small_disk(place: Path) -> Iterator[Path | None]:
    """Mount 64 MB at `place`; None where that is not allowed."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def _metrics(workdir: Path) -> list[dict[str, object]]:
    """Read what does not depend on the clock."""
    rows = read_jsonl(workdir / "metrics.jsonl")
    kept = [{k: v for k, v in row.items() if not k.startswith(("perf/", "time"))} for row in rows]
    return [row for row in kept if len(row) > 1]


def _first_difference(got: list[dict[str, object]], want: list[dict[str, object]]) -> str:
    for line, reference in itertools.zip_longest(got, want):
        if line != reference:
            return f"first {line} where {reference} was expected"
    return ""


def main() -> None:
    """Soak for the minutes asked for, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    began = time.monotonic()
    until, runs = began + 60 * asked.minutes, 0
    with (
        tempfile.TemporaryDirectory(prefix="soak") as scratch,
        _small_disk(Path(scratch, "disk")) as disk,
    ):
        reference = Path(scratch, "reference")
        log = Path(scratch, "log")
        if start(reference, log).wait():
            sys.exit(log.read_text())
        want, lines = digest(reference, ARGS), _metrics(reference)
        soak = Soak(Path(scratch, "disk", "run"), log, disk, random.Random(asked.seed))
        while runs == 0 or time.monotonic() < until:
            soak.run(until)
            if digest(soak.workdir, ARGS) != want:
                sys.exit(f"seed {asked.seed}: run {runs + 1} ends in another state")
            if difference := _first_difference(_metrics(soak.workdir), lines):
                sys.exit(f"seed {asked.seed}: run {runs + 1} has other metrics; {difference}")
            soak.forget()
            runs += 1
    took = (time.monotonic() - began) / 60
    faults = ", ".join(f"{name} {count}" for name, count in sorted(soak.counts.items()))
    where = "a tmpfs" if disk else "a limit on files"
    print(f"{runs} runs of {STEPS} steps in {took:.1f} minutes, equal to the bit; {faults}")
    print(f"the disk was {where}; {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
