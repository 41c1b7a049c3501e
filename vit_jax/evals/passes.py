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

# Arrays of a batch that no program reads: which example it is, and what is wrong with it.
HOST_ONLY = ("index", "broken", "reason")
_IN_FLIGHT = 3  # batches on the devices before the host waits for the oldest


@runtime_checkable
class Batches(Protocol):
    """One pass over a split."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...

    def close(self) -> None:
        """Stop whatever prepares the batches."""
        ...


def keep_passes(start: Callable[[int], Batches]) -> Callable[[int], Batches]:
    """Let every pass but the first of each batch size come from memory, with the same batches.

    A pass that is left before its end is not kept. What the batches take stays taken.
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
    """Compute something of every batch and hand it over, in order, when it has reached the host.

    Args:
        batches: starts one pass in global batches of a given size, the last one padded; yields
            this process's rows of each.
        batch_size: over all processes; taken up to the next multiple of the batch's parts.
        mesh: the devices.
        compute: of a batch on the devices, its padding included, with all arrays but `HOST_ONLY`.
        take: what to do with the result; the host waits only for results a few batches old.
    """
    unit = sharding.batch_shards(mesh)  # all must hold equal parts of a batch
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
