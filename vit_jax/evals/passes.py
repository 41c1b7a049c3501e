# SPDX-License-Identifier: Apache-2.0
"""One pass over a split: batches to the devices, results to the host later, progress on stderr."""

import collections
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.devices import sharding
from vit_jax.process.escapes import terminal
from vit_jax.settings.durations import format_duration

Arrays = dict[str, jax.Array]
_T = TypeVar("_T")
_U = TypeVar("_U")

# Arrays of a batch that stay on the host: the index of each example, and why it is unreadable.
HOST_ONLY = ("index", "broken", "reason")
_IN_FLIGHT = 3  # batches on the devices before the host waits for the oldest


@runtime_checkable
class Pass(Protocol):
    """One pass over a split."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...

    def close(self) -> None:
        """Stop preparing batches."""
        ...


Start = Callable[[int], Pass]  # starts a pass in global batches of a given size


def keep_passes(start: Start) -> Start:
    """Serve every pass but the first of each batch size from memory, with the same batches.

    An incomplete pass is not kept. Cached batches stay in memory for the evaluator's lifetime.
    """
    kept: dict[int, list[dict[str, np.ndarray]]] = {}

    def one_pass(batch_size: int) -> Pass:
        if batch_size in kept:
            yield from kept[batch_size]
            return
        done = []
        with contextlib.closing(start(batch_size)) as stream:
            for batch in stream:
                # Plain copies: worker processes' arrays hold shared memory and open files.
                done.append({key: np.array(value) for key, value in batch.items()})
                yield batch
        kept[batch_size] = done

    return one_pass


def run_pass(
    batches: Start,
    batch_size: int,
    mesh: Mesh,
    compute: Callable[[Arrays], Arrays],
    take: Callable[[Arrays], None],
) -> None:
    """Compute a result for every batch and pass it on, in order, once it has reached the host.

    Args:
        batches: starts one pass in global batches of a given size, the last one padded; yields
            this process's rows of each.
        batch_size: over all processes; rounded up to a multiple of the batch's shards.
        mesh: the devices.
        compute: batch on the devices, padding included, without `HOST_ONLY` -> result.
        take: consumes a result; the host waits only for results a few batches old.
    """
    unit = sharding.batch_shards(mesh)  # each shard holds equally many examples
    batch_size = math.ceil(batch_size / unit) * unit

    def start(batch: dict[str, np.ndarray]) -> Arrays:
        local = {key: value for key, value in batch.items() if key not in HOST_ONLY}
        result = compute(sharding.global_batch(local, mesh, batch_size=batch_size))
        for value in result.values():
            value.copy_to_host_async()
        return result

    with jax.set_mesh(mesh), contextlib.closing(batches(batch_size)) as stream:
        for result in ahead(stream, start, _IN_FLIGHT):
            take(result)


def ahead(items: Iterable[_T], start: Callable[[_T], _U], count: int) -> Iterator[_U]:
    """Yield start(item) for each item, with `count` items started ahead."""
    started: collections.deque[_U] = collections.deque()
    for item in items:
        started.append(start(item))
        if len(started) > count:
            yield started.popleft()
    yield from started


def ticking(batches: Start, tick: Callable[[], None]) -> Start:
    """Call `tick` after each batch of a pass."""

    def one_pass(batch_size: int) -> Pass:
        with contextlib.closing(batches(batch_size)) as stream:
            for batch in stream:
                yield batch
                tick()

    return one_pass


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
        self._write(f"{terminal(text)}\n")

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


def watched(batches: Start, total: int, what: str, *, times: int = 1) -> Start:
    """Show the progress of each pass over `total` images, each processed `times`."""

    def one_pass(batch_size: int) -> Pass:
        progress = PassProgress(total * times, what)
        with contextlib.closing(batches(batch_size)) as stream, contextlib.closing(progress):
            for batch in stream:
                yield batch
                progress.advance(int(batch["mask"].sum()) * times)

    return one_pass
