# SPDX-License-Identifier: Apache-2.0
"""A file of samples mapped into memory, as FFCV has it, as the other side of a comparison.

FFCV itself could not be built by pip here. What it does is done in Python: samples one behind the
other in a file that is mapped, an order anew every epoch, threads that decode straight into the
rows of a batch, batches ahead. Nothing else is done: no error is caught, no example named, nothing
follows from a seed.
"""

import collections
import concurrent.futures
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peer_images
from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn

_AHEAD = 3  # batches
_STORED_SIDE = 256


def make(
    folder: str, batch_size: int, batches: int, raw: bool = False
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream photographs as pipeline_ours.make does.

    Args:
        folder: as `photos.write_photos` lays it out; the mapped file is written beside it.
        batch_size: images a batch.
        batches: in a turn.
        raw: of pixels, resized to 256x256, instead of JPEGs.
    """
    place = _written(Path(folder), raw)
    data = np.memmap(place, np.uint8, "r")
    starts, labels = (np.load(f"{place}.{name}.npy") for name in ("starts", "labels"))

    def fill(batch: np.ndarray, pairs: Any) -> None:
        for row, index in pairs:
            sample = data[starts[index] : starts[index + 1]]
            if raw:
                image = sample.reshape(_STORED_SIDE, _STORED_SIDE, 3)
                peer_images.varied(image, batch[row])
            else:
                peer_images.fast(sample, batch[row])

    stream = _stream(fill, labels, batch_size)
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)


def _stream(
    fill: Callable[[np.ndarray, Any], None], labels: np.ndarray, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    indices = (i for _ in itertools.count() for i in np.random.permutation(len(labels)).tolist())
    threads = num_cores()
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    ahead: collections.deque[Any] = collections.deque()
    while True:
        chosen = list(itertools.islice(indices, batch_size))
        image = np.empty((batch_size, peer_images.SIDE, peer_images.SIDE, 3), np.uint8)
        pairs, into = list(enumerate(chosen)), functools.partial(fill, image)
        parts = [pool.submit(into, pairs[i :: 2 * threads]) for i in range(2 * threads)]
        ahead.append(({"image": image, "label": labels[chosen]}, parts))
        if len(ahead) == _AHEAD:
            batch, parts = ahead.popleft()
            for part in parts:
                part.result()
            yield batch


def _written(folder: Path, raw: bool) -> Path:
    """Write the mapped file, where samples begin and their labels, unless they are there."""
    import cv2

    place = folder / ("memmap.raw" if raw else "memmap.jpg")
    if place.exists():
        return place
    starts, labels = [0], []
    with place.open("wb") as stream:
        for path in sorted((folder / "train").glob("*/*.jpg")):
            data = path.read_bytes()
            if raw:
                pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
                size = (_STORED_SIDE, _STORED_SIDE)
                data = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA).tobytes()
            starts.append(starts[-1] + stream.write(data))
            labels.append(int(path.parent.name == "b"))
    np.save(f"{place}.starts.npy", np.array(starts))
    np.save(f"{place}.labels.npy", np.array(labels))
    return place
