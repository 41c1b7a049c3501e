# SPDX-License-Identifier: Apache-2.0
"""A run that waits for ever is ended, with what every thread was doing."""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

from vit_jax.train.clock import Clock, Stage

# Exit status of a run that hung (EX_OSERR of sysexits.h).
HUNG = 71

# What hung, by the stage that the clock is in, and what to do. What is not here may take any time.
_ADVICE = {
    Stage.DATA: ("waiting for data", "See whether the disk of data.data_dir or data.name answers"),
    Stage.STEP: ("waiting for the step", "See whether every device and every host still works"),
    Stage.EVAL: ("evaluating", "See whether the data, devices and hosts of evals still answer"),
    Stage.SAVE: ("saving a checkpoint", "See whether the disk of the workdir answers"),
    Stage.OTHER: ("writing metrics", "See whether the disk of the workdir answers"),
}
_LOOKS = 8  # in the time allowed


@contextlib.contextmanager
def watch(clock: Clock, seconds: float) -> Iterator[None]:
    """End the process with status 71 where the clock stands still for `seconds` inside; 0: never.

    A thread looks at the clock; it ends the process though the main one is stuck, and what is not
    saved is lost.
    """
    if not seconds:
        yield
        return
    done = threading.Event()
    threading.Thread(target=_follow, args=(clock, seconds, done), name="hang", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _follow(clock: Clock, seconds: float, done: threading.Event) -> None:
    # Looks in a row, not a time: a process that was stopped and goes on is not taken to have hung.
    before, still = clock.mark(), 0
    while not done.wait(seconds / _LOOKS):
        mark = clock.mark()
        still = still + 1 if mark == before and mark[0] in _ADVICE else 0
        before = mark
        if still == _LOOKS:
            _end(mark[0], seconds)


def _end(stage: Stage, seconds: float) -> None:
    doing, advice = _ADVICE[stage]
    line = (
        f"error: nothing was finished in {seconds:g} s of {doing}; above is where each thread is. "
        f"{advice}, then start the same command again, which continues; faults.hang_seconds allows "
        "more (0: any time)\n"
    )
    try:  # not by sys.stderr, which a thread may hold
        faulthandler.dump_traceback(2, all_threads=True)
        os.write(2, line.encode())
    finally:
        os._exit(HUNG)
