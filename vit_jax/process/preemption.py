# SPDX-License-Identifier: Apache-2.0
"""Requests to stop: SIGTERM, Ctrl-C or a closed terminal end a run at a step boundary."""

import os
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils

from vit_jax.process import signals

# Exit status of a run that was asked to stop and can continue (EX_TEMPFAIL of sysexits.h).
INTERRUPTED = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Preemption:
    """Context manager that remembers a signal; a second Ctrl-C ends the process at once.

    With several processes JAX's own preemption service takes SIGTERM and agrees on one step to stop
    at, since a host that stops alone leaves the others waiting in a collective; a closed terminal
    (SIGHUP) and Ctrl-C count as SIGTERM. A run under `nohup`, which ignores SIGHUP, continues.
    """

    def __init__(self) -> None:
        # The one received, in a run of one process; None in others: `requested` tells there.
        self.signal: signal.Signals | None = None
        self.stopped = False  # what `requested` has answered
        self._previous: dict[signal.Signals, object] = {}
        self._asked = False

    def __enter__(self) -> "Preemption":
        heeded = _SIGNALS if jax.process_count() == 1 else (signal.SIGHUP, signal.SIGINT)
        self._previous = signals.heed(dict.fromkeys(heeded, self._remember))
        return self

    def __exit__(self, *_: object) -> None:
        signals.restore(self._previous)

    def _remember(self, number: int, _: FrameType | None) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True
        if jax.process_count() == 1:
            self.signal = signal.Signals(number)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}" if self.signal else "stopped by a preemption notice"

    def requested(self, step: int) -> bool:
        """Return whether to save and stop after `step`; the same answer on every host."""
        self.stopped = self.signal is not None
        if jax.process_count() > 1:
            self.stopped = multihost_utils.reached_preemption_sync_point(step)
        return self.stopped
