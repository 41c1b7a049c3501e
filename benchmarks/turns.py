# SPDX-License-Identifier: Apache-2.0
"""Two programs measured in turns, each in a process of its own, so that a ratio holds under load.

On a shared machine absolute speeds drift by factors, and sides that take short turns drift more
nearly alike. Not quite: threads that spin at barriers (OpenMP) lose up to tenfold where cores are
contended. So a peer runs in several settings, its fastest of each round counts, and rows say how
loaded the machine was. Between its turns a side's process sleeps.
"""

import importlib.metadata
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple


class Turn(NamedTuple):
    """What one turn did: images, wall-clock seconds and CPU seconds of the whole process."""

    images: int
    seconds: float
    cpu_seconds: float


# Prepares a side in its process: settings -> (facts to report, what a turn does).
Make = Callable[..., tuple[dict[str, Any], Callable[..., Turn]]]
# Does something so many times, and returns when it is done.
Work = Callable[[int], None]


class Missing(Exception):
    """A package that a side needs cannot be imported."""


class Side:
    """A process that has prepared its work and does a turn of it when told to."""

    def __init__(self, make: Make, **settings: Any) -> None:
        """Start the process; returns when `make(**settings)` has.

        Raises:
            Missing: `make` could not import something.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, settings))
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = self._receive()

    def turn(self, *args: Any) -> Turn:
        """Do one turn, and return when it is done."""
        self._pipe.send(args)
        return self._receive()

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe.close()  # which ends it
        self._process.join()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a side's process ended with {self._process.exitcode}") from None
        if isinstance(answer, Missing):
            self._process.join()
            raise answer
        return answer


def _serve(pipe: Connection, make: Make, settings: dict[str, Any]) -> None:
    # A GPU's memory is shared by the sides.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        facts, do_turn = make(**settings)
    except ImportError as error:
        pipe.send(Missing(str(error)))
        return
    pipe.send(facts)
    while True:
        try:
            args = pipe.recv()
        except EOFError:
            return
        pipe.send(do_turn(*args))


def calibrated(
    works: Mapping[Any, tuple[int, Work]], seconds: float, least: int = 1
) -> Callable[[Any], Turn]:
    """Run every piece of work until it is warm; returns what a turn of it does.

    Args:
        works: by what a turn is asked for: the images of doing it once, and the work.
        seconds: about a turn's least length.
        least: how often a turn does it at least.
    """

    def clock(key: Any, count: int) -> Turn:
        images, work = works[key]
        start, cpu = time.perf_counter(), time.process_time()
        work(count)
        took = time.perf_counter() - start
        return Turn(count * images, took, time.process_time() - cpu)

    counts = {}
    for key, (_, work) in works.items():
        for _ in range(3):  # compiles, and settles: with two steps in flight the heap still grows
            work(2)
        counts[key] = max(least, round(seconds / clock(key, 1).seconds))
    return lambda key: clock(key, counts[key])


def alternate(sides: Sequence[Side], rounds: int, *args: Any) -> list[list[Turn]]:
    """Let every side do `rounds` turns; each round in the reverse order of the one before.

    Returns:
        The turns of each side.
    """
    turns: list[list[Turn]] = [[] for _ in sides]
    for r in range(rounds):
        order = list(range(len(sides)))
        for i in order if r % 2 == 0 else reversed(order):
            turns[i].append(sides[i].turn(*args))
            time.sleep(0.2)  # threads that spin before they sleep
    return turns


def fastest(turns: Sequence[Sequence[Turn]]) -> list[Turn]:
    """Return each round's fastest turn of several settings of one peer."""
    return [max(r, key=lambda t: t.images / t.seconds) for r in zip(*turns, strict=True)]


def images_per_second(turns: Sequence[Turn]) -> float:
    """Return the median rate of a side's turns."""
    return statistics.median(t.images / t.seconds for t in turns)


def ratios(ours: Sequence[Turn], peer: Sequence[Turn]) -> list[float]:
    """Return ours / peer in images per second, round by round."""
    return [
        (a.images / a.seconds) / (b.images / b.seconds) for a, b in zip(ours, peer, strict=True)
    ]


def cpu_ratio(ours: Sequence[Turn], peer: Sequence[Turn]) -> float:
    """Return the peer's CPU seconds per image over ours."""
    a, b = (statistics.median(t.cpu_seconds / t.images for t in turns) for turns in (ours, peer))
    return b / a


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
