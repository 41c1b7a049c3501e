# SPDX-License-Identifier: Apache-2.0
"""This project's input pipeline, as one side of a comparison."""

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.turns import Turn

# A pipeline goes on filling its buffers after a turn: so many batches are not counted. Two workers
# hold ten.
BUFFERED = 12


def timed(batches: Iterator[Any], count: int, batch_size: int) -> Turn:
    """Empty the buffers, then take `count` batches against the clock."""
    for _ in itertools.islice(batches, BUFFERED):
        pass
    cpu, start = cpu_seconds(), time.perf_counter()
    for _ in itertools.islice(batches, count):
        pass
    seconds = time.perf_counter() - start
    return Turn(count * batch_size, seconds, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers, as Linux counts it."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        stat = Path(f"/proc/{child.pid}/stat")
        with contextlib.suppress(OSError):  # another system, or a worker that ended
            user, system = stat.read_text().rpartition(")")[2].split()[11:13]
            total += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return total


def make(
    name: str, batch_size: int, batches: int, workers: int, data_dir: str = ""
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream photographs: inception crop to 224x224, flip, uint8.

    Args:
        name: the dataset.
        batch_size: images a batch.
        batches: in a turn.
        workers: processes besides this one; 0 is threads alone.
        data_dir: where the dataset is, if its name does not say.
    """
    from vit_jax import data

    cfg = data.DataConfig(
        name=name,
        data_dir=data_dir,
        batch_size=batch_size,
        num_workers=workers,
        transform=data.TransformConfig(crop=data.Crop.INCEPTION, flip=True),
    )
    source = data.open_source(cfg.name, cfg.data_dir)
    stream = data.train_batches(
        source, cfg, views=data.one_view(cfg.transform, (224, 224), 3), seed=0
    )
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)


def make_digits(batches: int) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream the digits as configs/vit_mu_digits.py augments them, 100 times as many batches."""
    from configs.vit_mu_digits import get_config
    from vit_jax import data

    cfg = get_config().data
    source = data.open_source(cfg.name, cfg.data_dir, cfg.train_split, cache=cfg.cache)
    stream = data.train_batches(source, cfg, views=data.one_view(cfg.transform, (8, 8), 1), seed=0)
    for _ in range(len(source) // cfg.batch_size + 2):  # fills the cache
        next(stream)
    return {}, lambda: timed(stream, 100 * batches, cfg.batch_size)
