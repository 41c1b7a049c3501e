# SPDX-License-Identifier: Apache-2.0
"""Goodput: the wall time of a run by phase, measured on the host alone."""

import contextlib
import enum
import time
from collections.abc import Callable, Iterator


class Phase(enum.StrEnum):
    """What a run spends its time on; time in nested phases counts for the inner one.

    `STEP` is the time the host blocks on the device: step time not overlapped with other phases.
    `COMPILE` is the call of the first step, which traces and compiles (the first call of an
    evaluation is `EVAL`). `OTHER` is metrics, progress, writing a profile.
    """

    INIT = "init"
    COMPILE = "compile"
    DATA = "data"
    STEP = "step"
    EVAL = "eval"
    SAVE = "save"
    OTHER = "other"


class Goodput:
    """Seconds in each phase, from `INIT` on; never waits for a device."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._phase = Phase.INIT
        self._since = now()
        self._last_line = (0.0, 0.0)  # seconds in all, and waiting for data

    def switch(self, phase: Phase) -> Phase:
        """Count for another phase from now on; returns the previous one."""
        now = self._now()
        self._seconds[self._phase] += now - self._since
        self._since = now
        before, self._phase = self._phase, phase
        return before

    def tick(self) -> None:
        """Record that the present phase makes progress."""
        self.switch(self._phase)

    def mark(self) -> tuple[Phase, float]:
        """Return the phase and when it began or last made progress; for other threads."""
        return self._phase, self._since

    @contextlib.contextmanager
    def spent(self, phase: Phase) -> Iterator[None]:
        """Count the time inside for a phase, then again for the previous one."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def seconds(self) -> dict[Phase, float]:
        """Return the seconds in each phase so far."""
        self.tick()
        return dict(self._seconds)

    def scalars(self) -> dict[str, float]:
        """Return `perf/wall_seconds` and the share of each phase in it, `perf/share/...`.

        `perf/data_wait` is the share of waiting for data since the last call.
        """
        seconds = self.seconds()
        wall, data = sum(seconds.values()), seconds[Phase.DATA]
        wall_before, data_before = self._last_line
        self._last_line = (wall, data)
        return {
            "perf/data_wait": (data - data_before) / max(wall - wall_before, 1e-9),
            "perf/wall_seconds": wall,
            **{f"perf/share/{phase}": s / max(wall, 1e-9) for phase, s in seconds.items()},
        }

    def __str__(self) -> str:
        """Return one line: the percentage of time in each phase."""
        seconds = self.seconds()
        wall = max(sum(seconds.values()), 1e-9)
        each = ", ".join(f"{phase} {100 * s / wall:.0f}" for phase, s in seconds.items())
        return f"goodput {100 * seconds[Phase.STEP] / wall:.0f} % of {wall:,.1f} s: {each}"
