# SPDX-License-Identifier: Apache-2.0
"""How many threads and processes load data: by cores, and by how long a read takes in a bucket."""

import math
import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from vit_jax.data.sources.base import Source, is_remote
from vit_jax.data.stream.transform import View
from vit_jax.errors import DataError

# Below this many values an image is quicker decoded than handed to another Python thread.
_TINY = 4096
# What a core decodes of small photographs; reads in flight must bring as many.
_IMAGES_PER_SECOND = 1600
# Readers of a process: no more than a driver's connections, and some where a read seems quick.
_MOST, _LEAST = 96, 16
# Beyond so many cores one process's Python is the limit.
_CORES_OF_A_PROCESS = 8


class Loading(NamedTuple):
    """What loads batches; it changes none of them."""

    num_threads: int  # that decode, and read what is on this machine, in each process
    num_readers: int  # that read ahead from a bucket, in each process
    num_workers: int  # processes besides this one
    prefetch: int  # batches prepared ahead, by each process
    at_once: int  # those in work: two, so that no thread idles while a batch's last rows finish


def choose(
    source: Source,
    views: Mapping[str, View],
    rows: int,
    *,
    num_threads: int,
    num_workers: int,
    prefetch: int,
) -> Loading:
    """Fill in what is 0; of a source in a bucket, examples are read to measure how long it takes.

    Args:
        source: what is read.
        views: the images of an example.
        rows: examples of a batch, of this process.
        num_threads: as `DataConfig` has it.
        num_workers: likewise.
        prefetch: likewise.

    Raises RemoteError: the bucket cannot be read.
    """
    cores, far = _cores(), is_remote(source)
    if far and not num_workers and not num_threads and cores > _CORES_OF_A_PROCESS:
        num_workers = cores // _CORES_OF_A_PROCESS
    tiny = sum(math.prod(view.shape) for view in views.values()) <= _TINY
    threads = 1 if tiny else max(1, 2 * cores // max(num_workers, 1))
    readers, at_once = 0, min(prefetch, 2)
    if far:
        needed = _seconds(source) * _IMAGES_PER_SECOND * cores / max(num_workers, 1)
        readers = min(max(math.ceil(needed), _LEAST), _MOST)
        at_once = max(at_once, math.ceil(readers / rows))  # a small batch has few to read
    return Loading(num_threads or threads, readers, num_workers, max(prefetch, at_once), at_once)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores this process may use
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _seconds(source: Source) -> float:
    """Return how long a read takes once there is a connection."""
    took = 0.0
    for index in {0, len(source) // 2, len(source) - 1}:
        start = time.perf_counter()
        try:
            source.read(index)
        except DataError:  # told at the batch that it is in, if it is in one
            continue
        took = time.perf_counter() - start
    return took
