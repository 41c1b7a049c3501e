# SPDX-License-Identifier: Apache-2.0
"""Progress of a long pass on standard error: images per second and the time left."""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from vit_jax.durations import format_duration
from vit_jax.evals.passes import Batches


class PassProgress:
    """Shows the progress of a pass over `total` images: every second on a terminal, else every ten.

    Short passes print nothing. `live=False` keeps a terminal free for other output.
    """

    def __init__(
        self,
        total: int,
        what: str,
        *,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._what = total, what
        self._terminal = sys.stderr.isatty()
        self._shown = live or not self._terminal
        self._clock = clock
        self._start = self._last = clock()
        self._warm: tuple[float, int] | None = None  # after the first batch, which compiles
        self._done = 0

    def advance(self, count: int) -> None:
        """Add `count` images to those submitted."""
        now, every = self._clock(), 1.0 if self._terminal else 10.0
        self._done += count
        if self._warm is None:
            self._warm = now, self._done
        elif self._shown and now - self._last >= every:
            self._last = now
            rate = self._rate(now)
            left = format_duration((self._total - self._done) / max(rate, 1e-9))
            share = self._done / self._total
            line = f"{self._what}  {share:.0%}  {rate:,.0f} images/s  eta {left}"
            self._write(f"\r{line}\033[K" if self._terminal else f"{line}\n")

    def message(self, text: str) -> None:
        """Show a line above the progress."""
        self.close()
        self._write(f"{text}\n")

    def summary(self) -> str:
        """Return the time taken and the rate, without the first batch unless there is no other."""
        now = self._clock()
        warm = self._warm is not None and self._done > self._warm[1]
        rate = self._rate(now) if warm else self._done / max(now - self._start, 1e-9)
        digits = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        note = "" if warm else ", compilation included"
        return f"in {now - self._start:.1f} s, {digits} images/s{note}"

    def close(self) -> None:
        """Clear the line of a terminal."""
        if self._terminal and self._shown and self._last > self._start:
            self._write("\r\033[K")

    def _rate(self, now: float) -> float:
        begin, before = self._warm or (self._start, 0)
        return (self._done - before) / max(now - begin, 1e-9)

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def watched(
    batches: Callable[[int], Batches], total: int, what: str, *, times: int = 1
) -> Callable[[int], Batches]:
    """Show the progress of each pass over `total` images, each processed `times`."""
    return lambda size: _Watched(batches(size), PassProgress(total * times, what), times)


class _Watched:
    def __init__(self, stream: Batches, progress: PassProgress, times: int) -> None:
        self._stream, self._progress, self._times = stream, progress, times

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for batch in self._stream:
            yield batch
            self._progress.advance(int(batch["mask"].sum()) * self._times)

    def close(self) -> None:
        self._progress.close()
        self._stream.close()
