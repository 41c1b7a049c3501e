# SPDX-License-Identifier: Apache-2.0
"""Images per second and the time that is left, on standard error, of what takes long."""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from vit_jax.durations import format_duration
from vit_jax.evals.passes import Batches


class Meter:
    """Says how far a pass over `total` images is: often on a terminal, seldom in a log.

    Silent while the work is younger than the first line would be, so short work has none.
    """

    def __init__(
        self, total: int, what: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._what = total, what
        self._live = sys.stderr.isatty()
        self._clock = clock
        self._start = self._last = clock()
        self._warm: tuple[float, int] | None = None  # after the first batch, which compiles
        self._done = 0

    def advance(self, count: int) -> None:
        """Note that `count` images more are under way."""
        now, every = self._clock(), 1.0 if self._live else 10.0
        self._done += count
        if self._warm is None:
            self._warm = now, self._done
        elif now - self._last >= every:
            self._last = now
            rate = (self._done - self._warm[1]) / max(now - self._warm[0], 1e-9)
            left = format_duration((self._total - self._done) / max(rate, 1e-9))
            share = self._done / self._total
            self._write(f"{self._what}  {share:.0%}  {rate:,.0f} images/s  eta {left}")

    def close(self) -> None:
        """Clear the line of a terminal."""
        if self._live and self._last > self._start:
            sys.stderr.write("\r\033[K")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line}\033[K" if self._live else f"{line}\n")
        sys.stderr.flush()


def watched(
    batches: Callable[[int], Batches], total: int, what: str, *, times: int = 1
) -> Callable[[int], Batches]:
    """Show the progress of each pass over `total` images, each of which is looked at `times`."""
    return lambda size: _Watched(batches(size), Meter(total * times, what), times)


class _Watched:
    def __init__(self, stream: Batches, meter: Meter, times: int) -> None:
        self._stream, self._meter, self._times = stream, meter, times

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for batch in self._stream:
            yield batch
            self._meter.advance(int(batch["mask"].sum()) * self._times)

    def close(self) -> None:
        self._meter.close()
        self._stream.close()
