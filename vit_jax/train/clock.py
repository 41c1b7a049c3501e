# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of a run goes: every second is of one stage, by the host's clock alone."""

import contextlib
import enum
import time
from collections.abc import Callable, Iterator


class Stage(enum.StrEnum):
    """What a run spends its time on; nested stages count for the inner one.

    Steps run on the device while the host goes on, so that `STEP` is the time in which the host
    starts them or waits for what they give: all that is left of them once the rest has been hidden
    behind them. `COMPILE` is the call of the first step, which traces and compiles (an evaluation's
    own first call is `EVAL`). `OTHER` is metrics, progress, a profile's writing.
    """

    INIT = "init"
    COMPILE = "compile"
    DATA = "data"
    STEP = "step"
    EVAL = "eval"
    SAVE = "save"
    OTHER = "other"


class Clock:
    """Begins in `INIT`; asking it costs no wait for a device."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seconds = dict.fromkeys(Stage, 0.0)
        self._stage = Stage.INIT
        self._since = now()
        self._last_line = (0.0, 0.0)  # of all time, of waiting for data

    def switch(self, stage: Stage) -> Stage:
        """Count from now on for another stage; returns the one before."""
        now = self._now()
        self._seconds[self._stage] += now - self._since
        self._since = now
        before, self._stage = self._stage, stage
        return before

    def tick(self) -> None:
        """Note that the present stage gets on."""
        self.switch(self._stage)

    def mark(self) -> tuple[Stage, float]:
        """Return the stage and the time at which it began or last got on; for other threads."""
        return self._stage, self._since

    @contextlib.contextmanager
    def spent(self, stage: Stage) -> Iterator[None]:
        """Count the time inside for a stage, then again for the one before."""
        before = self.switch(stage)
        try:
            yield
        finally:
            self.switch(before)

    def seconds(self) -> dict[Stage, float]:
        """Return the seconds of every stage so far; their sum is the clock's age."""
        self.tick()
        return dict(self._seconds)

    def scalars(self) -> dict[str, float]:
        """Return `perf/wall_seconds` and, of it, the share of each stage as `perf/share/...`.

        `perf/data_wait` is the share of the time since the last call in which the host waited for
        data.
        """
        seconds = self.seconds()
        wall, data = sum(seconds.values()), seconds[Stage.DATA]
        wall_before, data_before = self._last_line
        self._last_line = (wall, data)
        return {
            "perf/data_wait": (data - data_before) / max(wall - wall_before, 1e-9),
            "perf/wall_seconds": wall,
            **{f"perf/share/{stage}": s / max(wall, 1e-9) for stage, s in seconds.items()},
        }

    def __str__(self) -> str:
        """Say in one line where the time went, in whole percent."""
        seconds = self.seconds()
        wall = max(sum(seconds.values()), 1e-9)
        shares = {stage: f"{100 * s / wall:.0f}" for stage, s in seconds.items()}
        each = ", ".join(f"{stage} {share}" for stage, share in shares.items())
        return f"goodput {shares[Stage.STEP]} % of {wall:,.1f} s: {each}"
