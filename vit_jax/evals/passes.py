# SPDX-License-Identifier: Apache-2.0
"""One pass over a split: batches to the devices, results to the host a few batches later."""

import collections
import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import sharding

Arrays = dict[str, jax.Array]

# Arrays of a batch that stay on the host: the index of each example, and why it is unreadable.
HOST_ONLY = ("index", "broken", "reason")
_IN_FLIGHT = 3  # batches on the devices before the host waits for the oldest


@runtime_checkable
class Batches(Protocol):
    """One pass over a split."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...

    def close(self) -> None:
        """Stop preparing batches."""
        ...


def keep_passes(start: Callable[[int], Batches]) -> Callable[[int], Batches]:
    """Serve every pass but the first of each batch size from memory, with the same batches.

    An incomplete pass is not kept. Cached batches stay in memory for the evaluator's lifetime.
    """
    kept: dict[int, list[dict[str, np.ndarray]]] = {}

    def one_pass(batch_size: int) -> Generator[dict[str, np.ndarray], None, None]:
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
    batches: Callable[[int], Batches],
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
    in_flight: collections.deque[Arrays] = collections.deque()
    with jax.set_mesh(mesh), contextlib.closing(batches(batch_size)) as stream:
        for batch in stream:
            local = {key: value for key, value in batch.items() if key not in HOST_ONLY}
            result = compute(sharding.global_batch(local, mesh, batch_size=batch_size))
            for value in result.values():
                value.copy_to_host_async()
            in_flight.append(result)
            if len(in_flight) > _IN_FLIGHT:
                take(in_flight.popleft())
    for result in in_flight:
        take(result)
