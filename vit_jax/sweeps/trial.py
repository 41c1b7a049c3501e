# SPDX-License-Identifier: Apache-2.0
"""One point of a sweep trained to its end, in a process of its own: `main.py` with its flags."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vit_jax import errors
from vit_jax.process import signals
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.sweeps import results
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.results import State
from vit_jax.train.health.watchdog import HUNG
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir import folder as workdir

LOG = workdir.OUTPUT
_MAIN = "import sys; from vit_jax.cli.train import main; sys.exit(main(['main.py', *sys.argv[1:]]))"
_POLL = 0.2  # seconds
_TAIL = 1 << 20  # bytes of a log, in whose end its reason is
_MOST_STARTS = 3  # of a run that is killed or hangs again and again: memory, most likely
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Takes a step and the metric there; returns whether to give the run up.
Report = Callable[[int, float], bool]


class Stopping:
    """Context manager that remembers a signal to stop, and passes it on to the runs under way."""

    def __init__(self) -> None:
        self.requested = False
        self.processes: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> "Stopping":
        self._previous = signals.heed(dict.fromkeys(_SIGNALS, self.stop))
        return self

    def __exit__(self, *error: object) -> None:
        signals.restore(self._previous)

    def stop(self, *_: object) -> None:
        """Tell the runs to save and end, and their workers to start no others."""
        self.requested = True
        for process in list(self.processes):
            process.terminate()


def train(
    point: Point,
    place: Path,
    *,
    descriptor: int,
    environment: Mapping[str, str],
    stopping: Stopping,
    report: Report | None,
    log: Callable[[str], None],
) -> State:
    """Train or continue a claimed point until it is FINISHED, PRUNED, FAILED or INTERRUPTED.

    A run that is killed or hangs is continued. Its directory records a failure, or that it was
    given up.

    Args:
        point, place: the run and the sweep's directory.
        descriptor: of the claim, which the run holds too.
        environment: variables added to this process's.
        stopping: ends the run with a save when a signal comes.
        report: receives every value of the metric, from the first on.
    """
    run = point.workdir(place)
    workdir.check_links(run, (*workdir.WRITTEN, workdir.CHECKPOINTS, workdir.TENSORBOARD))
    run.mkdir(parents=True, exist_ok=True)
    results.unmark(run)
    for attempt in range(1, _MOST_STARTS + 1):
        begin = (run / LOG).stat().st_size if (run / LOG).exists() else 0
        process = _start(point, run, descriptor, environment)
        status, given_up = _watch(process, run, point, stopping, report)
        if status == 0:
            return State.FINISHED
        if stopping.requested:
            return State.INTERRUPTED
        if given_up:
            results.mark_ended(run, State.PRUNED, "worse than others at that step")
            return State.PRUNED
        reason = _reason(run, begin, status)
        if attempt == _MOST_STARTS or (status > 0 and status not in (INTERRUPTED, HUNG)):
            results.mark_ended(run, State.FAILED, reason)
            break
        log(f"{point.name}: {reason}; it is continued")
    return State.FAILED


def _start(
    point: Point, run: Path, descriptor: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-c",
        _MAIN,
        *point.arguments(),
        f"--workdir={workdir.address(run) or run}",
    ]
    with (run / LOG).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # One point, one process: those of an array job are no hosts of one run.
            env={**os.environ, "JAX_NUM_PROCESSES": "1", **environment},
            pass_fds=(descriptor,),
            start_new_session=True,  # a Ctrl-C reaches it through the worker alone
        )


def _watch(
    process: subprocess.Popen[bytes], run: Path, point: Point, stop: Stopping, report: Report | None
) -> tuple[int, bool]:
    """Wait for a process; returns its exit status, and whether `report` gave it up."""
    stop.processes.add(process)
    if stop.requested:  # between the start and the line above
        process.terminate()
    reported, given_up = 0, False
    try:
        while True:
            status = process.poll()
            if report is not None and not given_up:
                curve = results.series(read_jsonl(run / workdir.METRICS), point.metric)
                for step, value in curve[reported:]:
                    given_up |= report(step, value)
                reported = len(curve)
                if given_up and status is None:
                    process.terminate()
            if status is not None:
                return status, given_up
            time.sleep(_POLL)
    finally:
        stop.processes.discard(process)


def _reason(run: Path, begin: int, status: int) -> str:
    """Return why a process ended; its log begins at byte `begin`."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name} (too little memory?)"
    with (run / LOG).open("rb") as log:
        log.seek(max(begin, log.seek(0, os.SEEK_END) - _TAIL))
        lines = log.read().decode(errors="replace").split("\n")
    messages = [line for line in lines if line.startswith("error: ")] or [x for x in lines if x]
    last = errors.shown(messages[-1]) if messages else "no output"
    return f"status {status}: {last.removeprefix('error: ')}"
