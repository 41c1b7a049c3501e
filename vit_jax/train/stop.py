# SPDX-License-Identifier: Apache-2.0
"""Being told to stop: SIGTERM, Ctrl-C or a closed terminal end a run at a step boundary."""

import os
import signal
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

# Exit status of a run that was told to stop and can go on (EX_TEMPFAIL of sysexits.h).
INTERRUPTED = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Context manager that remembers a signal; a second Ctrl-C ends the process at once.

    With several processes JAX's own preemption service takes SIGTERM and agrees on one step to stop
    at, since a host that stops alone leaves the others waiting in a collective; a closed terminal
    (SIGHUP) counts as SIGTERM, and Ctrl-C is left to end the process as usual. A run under `nohup`,
    which ignores SIGHUP, goes on.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Stop":
        wanted = dict.fromkeys(_SIGNALS, self._remember)
        if jax.process_count() > 1:
            wanted = {signal.SIGHUP: self._terminate}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            del wanted[signal.SIGHUP]
        for number, handler in wanted.items():
            self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        os.kill(os.getpid(), signal.SIGTERM)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}" if self.signal else "stopped by a preemption notice"

    def requested(self, step: int) -> bool:
        """Say whether the run should save and stop after `step`; the same answer on every host."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self.signal is not None
