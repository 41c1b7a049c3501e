# SPDX-License-Identifier: Apache-2.0
"""Memory that worker processes fill with images and the main process reads, used again and again.

Grain gives each array of each batch memory of its own, which the kernel first has to clear and to
map: a fifth of a worker's time. Here the main process has some memory for a few batches of each
worker, and a batch whose arrays are gone leaves its place to another. The memory has no name, and
is gone with the processes, however they end. Where a system has no such memory (`available`), a
worker may not open it, or no place is free, arrays travel as Grain has it.
"""

import contextlib
import math
import mmap
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_PAGE = mmap.PAGESIZE
_ALIGNED = 64  # bytes, so that JAX on the CPU need not copy
_thread = threading.local()  # `room`: where the batch in work in a thread lies


class _Room(NamedTuple):
    """A place that a batch has taken, and the arrays that lie in it so far."""

    number: int
    memory: np.ndarray
    placed: list[tuple[np.ndarray, int]]


class Lent:
    """An array's place, which travels instead of it."""

    def __init__(self, worker: int, place: int, start: int, array: np.ndarray) -> None:
        self.worker, self.place, self.start = worker, place, start
        self.shape, self.dtype = array.shape, array.dtype


def available() -> bool:
    """Return whether this system has memory without a name that another process can open."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Slots:
    """Memory for some batches of one worker; can be pickled, for the worker.

    A byte for each place says whether it is taken: the worker sets it, the main process clears it.
    """

    def __init__(self, worker: int, num_bytes: int, count: int) -> None:
        self._worker, self._count, self._lock = worker, count, threading.Lock()
        self._bytes = -(-num_bytes // _PAGE) * _PAGE
        self._file = os.memfd_create("batches")
        os.ftruncate(self._file, _PAGE + count * self._bytes)
        self._path = f"/proc/{os.getpid()}/fd/{self._file}"
        self._map(self._file)

    def _map(self, file: int) -> None:
        self._memory = np.frombuffer(mmap.mmap(file, _PAGE + self._count * self._bytes), np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        names = ("_worker", "_count", "_bytes", "_path")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # a process that has changed its user: no place is ever free
            self._count, self._memory = 0, np.zeros(0, np.uint8)
            return
        self._map(file)
        os.close(file)

    def close(self) -> None:
        """Let the memory go when no array lies in it any more."""
        os.close(self._file)

    @contextlib.contextmanager
    def taken(self) -> Iterator[_Room | None]:
        """Lend this thread a place for the arrays of a batch; None where all are taken.

        It is given back if the batch fails.
        """
        with self._lock:
            free = np.flatnonzero(self._memory[: self._count] == 0)
            number = int(free[0]) if len(free) else -1
            if number >= 0:
                self._memory[number] = 1
        if number < 0:
            yield None
            return
        room = _thread.room = _Room(number, self._at(number), [])
        try:
            yield room
        except BaseException:
            self._memory[number] = 0
            raise
        finally:
            _thread.room = None

    def packed(self, room: _Room, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Put the places of those arrays that lie in a room instead of them."""
        starts = {id(array): start for array, start in room.placed}
        if not any(id(value) in starts for value in batch.values()):
            self._memory[room.number] = 0
        return {
            key: Lent(self._worker, room.number, starts[id(value)], value)
            if id(value) in starts
            else value
            for key, value in batch.items()
        }

    def loan(self, number: int) -> "_Loan":
        """Return what gives a place back when it is gone."""
        return _Loan(self._memory, number, self._at(number))

    def _at(self, number: int) -> np.ndarray:
        begin = _PAGE + number * self._bytes
        return self._memory[begin : begin + self._bytes]


class _Loan:
    def __init__(self, flags: np.ndarray, number: int, memory: np.ndarray) -> None:
        self._flags, self._number, self.memory = flags, number, memory

    def __del__(self) -> None:
        self._flags[self._number] = 0


class _Owner:
    """What NumPy asks for an array's memory; it keeps the loan as long as any view is alive."""

    def __init__(self, loan: _Loan, lent: Lent) -> None:
        self._loan = loan
        self.__array_interface__ = {
            "shape": lent.shape,
            "typestr": lent.dtype.str,
            "data": (loan.memory.ctypes.data + lent.start, False),
            "version": 3,
        }


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array for a batch: in the room that this thread has been lent, if there is one."""
    room: _Room | None = getattr(_thread, "room", None)
    size = math.prod(shape) * dtype.itemsize
    if room is None:
        return np.empty(shape, dtype)
    last = room.placed[-1] if room.placed else None
    start = -(-(last[1] + last[0].nbytes) // _ALIGNED) * _ALIGNED if last else 0
    if start + size > len(room.memory):
        return np.empty(shape, dtype)
    array = room.memory[start : start + size].view(dtype).reshape(shape)
    room.placed.append((array, start))
    return array


def size_of(arrays: Sequence[tuple[tuple[int, ...], np.dtype]]) -> int:
    """Return how many bytes a room needs for arrays of these shapes and dtypes."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in arrays]
    return sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes)


def opened(places: Sequence[Slots], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with its arrays for their places; these are free when no view is left."""
    found, loans = {}, {}
    for key, value in batch.items():
        if isinstance(value, Lent):
            if value.place not in loans:
                loans[value.place] = places[value.worker].loan(value.place)
            value = np.asarray(_Owner(loans[value.place], value))
        found[key] = value
    return found
