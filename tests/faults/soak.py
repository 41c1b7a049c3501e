# SPDX-License-Identifier: Apache-2.0
"""Disturb a run at random for some minutes, and compare it with an undisturbed one, bit for bit.

    python -m tests.faults.soak --minutes=20 [--seed=N]

Processes are killed (SIGKILL), told to stop (SIGTERM, SIGHUP), stopped and continued (SIGSTOP),
lose the reader of what they print, find the disk full or failing or no file to open, meet a second
process of another seed, and find their newest checkpoint damaged or the data gone when they start
again. Each run has a directory of another odd name; copies of it go on with eight devices. Exit
status 0: the parameters, optimizer state, PRNG key and every line of the metrics equal those of the
reference, and the losses of the copies agree within 1e-4 of their value.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import math
import os
import random
import resource
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.faults import disks
from tests.integration.train.test_resume import ROOT, SMALL, digest
from vit_jax.checkpoints.config import steps_in
from vit_jax.errors import IO_ERROR, DataError, UserError
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir.folder import finished_step

ARGS = (
    *SMALL,
    "--config.model.dropout_rate=0.1",
    "--config.optim.warmup=5 steps",
    "--config.checkpoint.every=50 steps",
    "--config.checkpoint.keep=4",
    "--config.checkpoint.keep_best=0",
    "--config.log.every=10 steps",
    "--config.log.tensorboard=false",
    "--config.evals.val.every=500 steps",
    "--config.evals.test.report=false",
)
FAULTS = (
    "SIGKILL",
    "SIGTERM",
    "SIGHUP",
    "SIGSTOP",
    "full disk",
    "failing disk",
    "no file to open",
    "other seed",
)
CHARACTERS = [c for c in string.printable if c.isprintable() and c not in "/*?[]\\"]
# Of a start and of the steps after it, in seconds: a fault comes anywhere in between.
LATEST = 12.0


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a soak works: a scratch directory.

    Attributes:
        scratch: the directory; it holds the datasets and the log of what runs print.
        args: of every run.
        disk: a small disk in it; None where none can be mounted.
        failing: `disks.failing`; None without a C compiler.
    """

    scratch: Path
    args: tuple[str, ...]
    disk: Path | None
    failing: tuple[Path, Mapping[str, str]] | None

    @property
    def data(self) -> Path:
        """Where datasets lie."""
        return self.scratch / "data"

    @property
    def log(self) -> Path:
        """What all runs printed."""
        return self.scratch / "log"

    def start(
        self, workdir: Path, *args: str, devices: int = 1, lines: int = 0
    ) -> subprocess.Popen:
        """Start a run, or continue it; what it prints goes to the end of the log.

        Args:
            workdir: the run's.
            args: further flags.
            devices: how many.
            lines: that are read before the reader goes away; 0 for all.
        """
        own = {"JAX_NUM_CPU_DEVICES": str(devices), "TFDS_DATA_DIR": str(self.data)}
        env = {**os.environ, **own, **(self.failing[1] if self.failing else {})}
        command = [sys.executable, "main.py", f"--workdir={workdir}", *self.args, *args]
        with self.log.open("a") as file:
            if not lines:
                return subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=file)
            head = subprocess.Popen(["head", "-n", str(lines)], stdin=subprocess.PIPE, stdout=file)
            assert head.stdin is not None
            with head.stdin as pipe:
                return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=file)


class Soak:
    """One run that is disturbed; `counts` says how often by what."""

    def __init__(self, place: Place, losses: Mapping[int, float], rng: random.Random) -> None:
        """Take the losses of the undisturbed run by step."""
        self.place, self.losses, self.rng = place, losses, rng
        self.counts: collections.Counter[str] = collections.Counter()
        self.damaged: set[str] = set()
        self.workdir = self._named()

    def _named(self) -> Path:
        name = "".join(self.rng.choices(CHARACTERS, k=12))
        return self.place.scratch / "disk" / ("x" if name in (".", "..") else name)

    def run(self, until: float) -> None:
        """Start the run again and again, undisturbed after `until`, until it has finished."""
        while True:
            lines = self.rng.choice([0, 0, 1, 5]) if time.monotonic() < until else 0
            self.counts["closed pipe"] += lines > 0
            process = self.place.start(self.workdir, lines=lines)
            self.counts["starts"] += 1
            expected = self._disturb(process, until)
            status = process.wait(timeout=300)
            if status == 0:
                return
            if status not in expected:
                log = self.place.log.read_text()[-4000:]
                sys.exit(f"status {status}, where {sorted(expected)} were expected:\n{log}")
            if time.monotonic() < until and self.rng.random() < 0.4:
                self._damage()
            if time.monotonic() < until and self.rng.random() < 0.1:
                self._without_data()
            if time.monotonic() < until and self.rng.random() < 0.1:
                self._on_eight_devices()

    def _disturb(self, process: subprocess.Popen, until: float) -> set[int]:
        """Do something to a process until it ends; returns the statuses it may end with."""
        expected = {0}
        while time.monotonic() < until:
            if _ends_in(process, self.rng.uniform(0.2, LATEST)):
                return expected
            fault = self.rng.choice(FAULTS)
            self.counts[fault] += fault != "other seed"  # not always possible
            if fault == "SIGKILL":
                process.kill()
                return {-signal.SIGKILL, 0}
            if fault in ("SIGTERM", "SIGHUP"):  # before a run has its handler, they just end it
                number = signal.Signals[fault]
                process.send_signal(number)
                return expected | {INTERRUPTED, -number}
            if fault == "SIGSTOP":
                process.send_signal(signal.SIGSTOP)
                time.sleep(self.rng.uniform(0.5, 3))
                process.send_signal(signal.SIGCONT)
            elif fault == "other seed":
                self._second(process)
            elif fault == "no file to open":
                # Data may be the first that lacks one, or XLA, which has no line of ours.
                expected |= {IO_ERROR, DataError.status, 1}
                with disks.limited(process, resource.RLIMIT_NOFILE):
                    _ends_in(process, self.rng.uniform(0.5, 3))
            else:
                expected |= {IO_ERROR}
                with self._failing() if fault == "failing disk" else self._no_room(process):
                    _ends_in(process, self.rng.uniform(0.5, 3))
        return expected

    @contextlib.contextmanager
    def _no_room(self, process: subprocess.Popen) -> Iterator[None]:
        """Fill the disk; where mounting one is not allowed, forbid the process to write more."""
        if self.place.disk is None:
            with disks.limited(process, resource.RLIMIT_FSIZE):
                yield
        else:
            with disks.full(self.place.disk):
                yield

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Have reads of checkpoints fail with EIO."""
        if self.place.failing is None:
            sys.exit("a C compiler is needed: no cc is in PATH")
        switch, _ = self.place.failing
        switch.touch()
        yield
        switch.unlink()

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

    def _second(self, first: subprocess.Popen) -> None:
        """Start another run in the same place: the first holds it, and has saved another seed's."""
        lock = self.workdir / ".lock"
        held = lock.exists() and f"pid {first.pid} " in lock.read_text()
        if not held or not steps_in(self.workdir / "checkpoints"):
            return
        self.counts["other seed"] += 1
        status = self.place.start(self.workdir, "--config.seed=1").wait(timeout=120)
        if status != UserError.status:
            sys.exit(f"a second process of another seed ended with {status}")

    def _without_data(self) -> None:
        """Start the run while its dataset is away, which must be refused."""
        if finished_step(self.workdir) is not None:
            return
        away = self.place.data.with_name("away")
        self.place.data.rename(away)
        self.place.data.write_text("no folder")
        status = self.place.start(self.workdir).wait(timeout=120)
        self.place.data.unlink()
        away.rename(self.place.data)
        if status != UserError.status:
            sys.exit(f"a start without data ended with {status}")
        self.counts["data away"] += 1

    def _on_eight_devices(self) -> None:
        """Let a copy of the run go on for some lines on eight devices, with the losses of one."""
        if not self.workdir.is_dir() or finished_step(self.workdir) is not None:
            return
        copy = self.place.scratch / "copy"
        shutil.copytree(self.workdir, copy)
        saved = max(
            (int(e.name) for e in copy.glob("checkpoints/*") if e.name.isdecimal()), default=0
        )
        process = self.place.start(copy, devices=8)
        _ends_in(process, 15.0)
        process.kill()
        process.wait()
        new = {k: v for k, v in _losses(copy).items() if saved < k <= saved + 50}
        for step, loss in new.items():
            if not math.isclose(loss, self.losses[step], rel_tol=1e-4):
                sys.exit(f"step {step} on eight devices: loss {loss}, not {self.losses[step]}")
        self.counts["lines on eight devices"] += len(new)
        shutil.rmtree(copy)

    def forget(self) -> None:
        """Remove the run, for the next."""
        shutil.rmtree(self.workdir)
        self.damaged.clear()
        self.workdir = self._named()


def _ends_in(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def metrics(workdir: Path) -> list[dict[str, object]]:
    """Read what does not depend on the clock."""
    rows = read_jsonl(workdir / "metrics.jsonl")
    kept = [{k: v for k, v in row.items() if not k.startswith(("perf/", "time"))} for row in rows]
    return [row for row in kept if len(row) > 1]


def _losses(workdir: Path) -> dict[int, float]:
    rows = read_jsonl(workdir / "metrics.jsonl")
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


def _first_difference(got: list[dict[str, object]], want: list[dict[str, object]]) -> str:
    for line, reference in itertools.zip_longest(got, want):
        if line != reference:
            return f"first {line} where {reference} was expected"
    return ""


def main() -> None:
    """Soak for the minutes asked for, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=3000, help="of a run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the runs inherit it, also under `nohup`
    began = time.monotonic()
    until, runs = began + 60 * asked.minutes, 0
    with (
        tempfile.TemporaryDirectory(prefix="soak") as scratch,
        disks.small(Path(scratch, "disk")) as disk,
    ):
        args = (*ARGS, f"--config.duration={asked.steps} steps")
        place = Place(Path(scratch), args, disk, disks.failing(Path(scratch)))
        reference = Path(scratch, "reference")
        if place.start(reference).wait():
            sys.exit(place.log.read_text())
        want, lines = digest(reference, args), metrics(reference)
        soak = Soak(place, _losses(reference), random.Random(asked.seed))
        while runs == 0 or time.monotonic() < until:
            soak.run(until)
            if digest(soak.workdir, args) != want:
                sys.exit(f"seed {asked.seed}: run {runs + 1} ends in another state")
            if difference := _first_difference(metrics(soak.workdir), lines):
                sys.exit(f"seed {asked.seed}: run {runs + 1} has other metrics; {difference}")
            soak.forget()
            runs += 1
    took = (time.monotonic() - began) / 60
    faults = ", ".join(f"{name} {count}" for name, count in sorted(soak.counts.items()))
    where = "a tmpfs" if disk else "a limit on files"
    print(f"{runs} runs of {asked.steps} steps in {took:.1f} minutes, equal to the bit; {faults}")
    print(f"the disk was {where}; {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
