# SPDX-License-Identifier: Apache-2.0
"""The watchdog ends a run that hangs and prints the stack of every thread."""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

from vit_jax.train.report.goodput import Goodput, Phase

# Exit status of a run that hung (EX_OSERR of sysexits.h).
HUNG = 71

# What hung and what to do, by phase. Other phases have no time limit.
_ADVICE = {
    Phase.DATA: ("waiting for data", "See whether the disk of data.data_dir or data.name answers"),
    Phase.STEP: ("waiting for the step", "See whether every device and every host still works"),
    Phase.EVAL: ("evaluating", "See whether the data, devices and hosts of evals still answer"),
    Phase.SAVE: ("saving a checkpoint", "See whether the disk of the workdir answers"),
    Phase.OTHER: ("writing metrics", "See whether the disk of the workdir answers"),
}
_LOOKS = 8  # checks within the time limit


@contextlib.contextmanager
def watch(goodput: Goodput, seconds: float) -> Iterator[None]:
    """End the process with status 71 if the phase makes no progress for `seconds`; 0: never.

    A thread checks `goodput`, so that it works while the main thread is stuck. Unsaved steps are
    lost.
    """
    if not seconds:
        yield
        return
    done = threading.Event()
    arguments = (goodput, seconds, done)
    threading.Thread(target=_follow, args=arguments, name="hang", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _follow(goodput: Goodput, seconds: float, done: threading.Event) -> None:
    # Counts checks, not seconds: a process that was suspended and continues has not hung.
    before, still = goodput.mark(), 0
    while not done.wait(seconds / _LOOKS):
        mark = goodput.mark()
        still = still + 1 if mark == before and mark[0] in _ADVICE else 0
        before = mark
        if still == _LOOKS:
            _end(mark[0], seconds)


def _end(phase: Phase, seconds: float) -> None:
    doing, advice = _ADVICE[phase]
    line = (
        f"error: nothing was finished in {seconds:g} s of {doing}; above is where each thread is. "
        f"{advice}, then start the same command again, which continues; faults.hang_seconds allows "
        "more (0: any time)\n"
    )
    try:  # not sys.stderr, whose lock a thread may hold
        faulthandler.dump_traceback(2, all_threads=True)
        os.write(2, line.encode())
    finally:
        os._exit(HUNG)
