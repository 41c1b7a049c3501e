# SPDX-License-Identifier: Apache-2.0
"""A walk over images at their own sizes: windows of them to the devices, predictions back.

Each process takes every n-th image. Images may have different numbers of windows, so that the
processes agree before each batch whether any of them has one left.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Num

from vit_jax.devices import sharding
from vit_jax.evals.base import Predict
from vit_jax.evals.dense.decode import Windows
from vit_jax.evals.passes import Pass, ahead, run_pass, ticking
from vit_jax.trees import PyTree

Cut = Callable[[Num[np.ndarray, "H W C"]], Windows]
_T = TypeVar("_T")
_AHEAD = 2  # images that each thread has read or works on before they are waited for


class SeenImage(NamedTuple):
    """An image and the windows that the model sees of it."""

    index: int
    image: Num[np.ndarray, "H W C"]
    windows: Windows


# What becomes of an image and of the predictions for its windows, an array or a tuple for each.
Finish = Callable[[SeenImage, list[Any]], _T]


def walk(
    indices: Sequence[int],
    read: Callable[[int], Num[np.ndarray, "H W C"]],
    cut: Cut,
    predict: Predict,
    variables: PyTree,
    finish: Finish[_T],
    *,
    window: jax.ShapeDtypeStruct,
    mesh: Mesh,
    batch_size: int,
    num_threads: int,
    tick: Callable[[], None] | None = None,
) -> list[_T]:
    """Return what `finish` makes of each of this process's images, in order.

    Args:
        indices: of the images; this process takes its share.
        read: gives an image; in threads.
        cut: gives its windows; in threads.
        predict: (variables, {"image": windows}) -> an array or a tuple of arrays, a row a window.
        variables: on the devices.
        finish: in threads.
        window: of one, [H, W, C].
        mesh: the devices.
        batch_size: windows at once, over all processes.
        num_threads: of this process.
        tick: called after each batch.

    Raises what `read`, `cut` and `finish` raise.
    """
    own = indices[jax.process_index() :: jax.process_count()]
    pool = ThreadPoolExecutor(max(num_threads, 1), thread_name_prefix="walk")
    held = _AHEAD * max(num_threads, 1)
    waiting: collections.deque[SeenImage] = collections.deque()
    counts: collections.deque[int] = collections.deque()
    done: list[Any] = []
    results: collections.deque[Future[_T]] = collections.deque()
    finished: list[_T] = []

    def seen(index: int) -> SeenImage:
        image = read(index)
        return SeenImage(index, image, cut(image))

    def windows() -> Iterator[np.ndarray]:
        for future in ahead(own, lambda index: pool.submit(seen, index), held):
            waiting.append(future.result())
            yield from waiting[-1].windows.pixels

    def start(size: int) -> Pass:
        rows, every = len(sharding.batch_rows(mesh, size)), windows()
        while _any(batch := list(itertools.islice(every, rows))):
            image = np.zeros((rows, *window.shape), window.dtype)
            image[: len(batch)] = batch or 0
            counts.append(len(batch))
            yield {"image": image}

    def compute(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return _predicted(variables, batch, predict=predict, mesh=mesh)

    def take(found: Mapping[str, jax.Array]) -> None:
        rows = [_own_rows(array, mesh) for array in found.values()]
        for row in range(counts.popleft()):
            each = [array[row] for array in rows]
            done.append(tuple(each) if len(each) > 1 else each[0])
        while waiting and len(done) >= (number := len(waiting[0].windows.pixels)):
            results.append(pool.submit(finish, waiting.popleft(), done[:number]))
            del done[:number]
            while len(results) > held:
                finished.append(results.popleft().result())

    try:
        run_pass(ticking(start, tick) if tick else start, batch_size, mesh, compute, take)
        return [*finished, *(future.result() for future in results)]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _any(batch: Sequence[np.ndarray]) -> bool:
    """Return whether any process has a window left."""
    own = bool(batch)
    if jax.process_count() == 1:
        return own
    return bool(np.asarray(multihost_utils.process_allgather(np.asarray(own))).any())


@functools.partial(jax.jit, static_argnames=("predict", "mesh"))
def _predicted(
    variables: PyTree, batch: Mapping[str, jax.Array], *, predict: Predict, mesh: Mesh
) -> dict[str, jax.Array]:
    """Return the arrays of a prediction by their number; each process keeps its rows."""
    found: Any = predict(variables, batch)
    arrays = found if isinstance(found, tuple) else (found,)
    rows = sharding.batch_sharding(mesh)
    return {
        str(i): jax.lax.with_sharding_constraint(array.astype(jnp.float32), rows)
        for i, array in enumerate(arrays)
    }


def _own_rows(array: jax.Array, mesh: Mesh) -> np.ndarray:
    """Return the rows of a global batch that this process read, on the host."""
    if jax.process_count() == 1:
        return np.asarray(array)
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])
