# SPDX-License-Identifier: Apache-2.0
"""Batches prepared ahead by threads, or by Grain's worker processes, which end when this does."""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from vit_jax.data.stream.loading import Loading

Batch: TypeAlias = dict[str, np.ndarray]


@runtime_checkable
class BatchSource(Protocol):
    """Random access to batches; can be pickled. `close` stops the threads of its own."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch: ...

    def close(self) -> None:
        """Make batches that are still in work fail."""


class BatchIterator(Iterator[Batch], contextlib.AbstractContextManager["BatchIterator"]):
    """An iterator over batches that prepares them ahead from the moment it exists.

    `close()` it, or use it in a `with` block, to stop its threads and processes; at the latest
    they stop with the program, after preparing the requested batches.
    """

    def __init__(self, batches: BatchSource, loading: Loading) -> None:
        # The list holds the only reference: Grain's iterator cleans up once more when collected,
        # which fails loudly where modules are being torn down. The finalizer runs once, at
        # close(), when this is collected, or at exit before that happens.
        self._open = [(_from_processes if loading.num_workers else Threads)(batches, loading)]
        self._finalizer = weakref.finalize(self, _close, self._open, batches)

    def __next__(self) -> Batch:
        if not self._open:
            raise ValueError("these batches were closed")
        return next(self._open[0])

    def close(self) -> None:
        """Stop preparing batches; does not wait for threads, does wait for processes."""
        self._finalizer()

    def __exit__(self, *_: object) -> None:
        self.close()


class Threads:
    """Batches prepared ahead in this process, without Grain, whose own cost is a digits batch's."""

    def __init__(self, batches: BatchSource, loading: Loading) -> None:
        self._rest = iter(range(len(batches)))
        self._prepare = batches.__getitem__
        self._pool = concurrent.futures.ThreadPoolExecutor(loading.at_once, "batches")
        self._ahead: collections.deque[concurrent.futures.Future[Batch]] = collections.deque()
        self._start(loading.prefetch)

    def __next__(self) -> Batch:
        if not self._ahead:
            raise StopIteration
        batch = self._ahead.popleft()
        self._start(1)
        return batch.result()

    def close(self) -> None:
        """Start no more batches."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, count: int) -> None:
        for index in itertools.islice(self._rest, count):
            self._ahead.append(self._pool.submit(self._prepare, index))


def _from_processes(batches: BatchSource, loading: Loading) -> Any:
    """Start Grain's worker processes, each with threads of its own."""
    import grain  # late: it takes a second to import
    from absl import flags

    if not flags.FLAGS.is_parsed():  # Grain hands its flags to the workers
        flags.FLAGS.mark_as_parsed()
    options = grain.ReadOptions(num_threads=loading.at_once, prefetch_buffer_size=loading.prefetch)
    dataset = grain.MapDataset.source(batches).to_iter_dataset(options)
    dataset = dataset.mp_prefetch(
        grain.MultiprocessingOptions(loading.num_workers, per_worker_buffer_size=1),
        worker_init_fn=_start_worker,
    )
    iterator = iter(dataset)
    iterator.start_prefetch()
    return iterator


def _close(iterators: list[Any], batches: BatchSource) -> None:
    iterators.pop().close()
    batches.close()


def _start_worker(worker_index: int, worker_count: int) -> None:
    # Ctrl-C, a scheduler's SIGTERM and a closed terminal reach every process of the job, but it is
    # the main process that decides what to finish: it may still want batches, and ends its workers.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    # A main process that is killed cannot end its workers; Grain's would wait for it for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
