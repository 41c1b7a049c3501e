# SPDX-License-Identifier: Apache-2.0
"""Batches as a pure function of (seed, step), prepared ahead by threads or processes.

Example i of step s is element s * B + i of an infinite stream that is reshuffled every epoch, and
whatever is drawn at random for it depends on the seed and that number alone. So resuming needs the
step and nothing else, and the batches are the same for any number of threads, workers and hosts.
"""

import concurrent.futures
import functools
import math
import os
import sys
import threading
from typing import Any

import cv2
import jax
import numpy as np

from vit_jax.data.config import (
    DataConfig,
    TransformConfig,
    check_transform,
    is_random,
    mean_color,
)
from vit_jax.data.pixel_cache import MAX_CACHED_BYTES, Example, PixelCache
from vit_jax.data.prefetch import Batch, BatchIterator
from vit_jax.data.sources import Source
from vit_jax.data.stream import stream_indices
from vit_jax.data.transform import Transform
from vit_jax.errors import UserError

# Below this many values an image is quicker decoded than handed to another Python thread.
_TINY = 4096


class _Batches:
    """Random access to whole batches.

    Element i is batch `first + i`. The rows of a batch are spread over a thread pool: all cores
    work on the batch that is needed next.
    """

    def __init__(
        self,
        source: Source,
        transform: Transform,
        *,
        batch_size: int,
        rows: range,
        length: int,
        num_threads: int,
        seed: int | None,
        first: int = 0,
        repeats: int = 1,
    ) -> None:
        """Take the global batch size, and which `rows` of each batch are this process's.

        `seed` None is one pass in the stored order, the last batch padded.
        """
        self._source = source
        self._transform = transform
        self._batch_size = batch_size
        self._rows = rows
        self._length = length
        self._num_threads = num_threads
        self._seed = seed
        self._first = first
        self._repeats = repeats
        # One pass sees each example once, so nothing is kept of it.
        self._cache = PixelCache(len(source), 0 if seed is None else MAX_CACHED_BYTES)
        self._lock = threading.Lock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {
            "batch_size": self._batch_size,
            "rows": self._rows,
            "length": self._length,
            "num_threads": self._num_threads,
            "seed": self._seed,
            "first": self._first,
            "repeats": self._repeats,
        }
        return functools.partial(_Batches, **settings), (self._source, self._transform)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        start = (self._first + int(index)) * self._batch_size
        positions = np.arange(start + self._rows.start, start + self._rows.stop)
        count, source, size = len(positions), self._source, self._transform.image_size
        multi = source.multi_label
        batch: Batch = {
            "image": np.empty((count, *size, self._transform.channels), np.uint8),
            "label": np.zeros(
                (count, source.num_classes) if multi else count, _label_dtype(source)
            ),
            "index": stream_indices(positions, len(source), self._seed, self._repeats),
        }
        if self._seed is None:
            batch["mask"] = (batch["index"] >= 0).astype(np.float32)
        if self._num_threads == 1:
            self._fill(batch, positions, range(count))
        else:
            step = max(1, count // (4 * self._num_threads))
            chunks = [range(i, min(i + step, count)) for i in range(0, count, step)]
            fill = functools.partial(self._fill, batch, positions)
            for _ in self._threads().map(fill, chunks):  # the loop raises what a thread raised
                pass
        return batch

    def _fill(self, batch: Batch, positions: np.ndarray, rows: range) -> None:
        images, labels, transform = batch["image"], batch["label"], self._transform
        examples = batch["index"][rows.start : rows.stop].tolist()
        drawn = positions[rows.start : rows.stop]
        variations = transform.variations(self._seed or 0, drawn)
        for row, example, vary in zip(rows, examples, variations, strict=True):
            if example < 0:
                images[row] = 0
                continue
            try:
                found = self._cache.get(example) or self._load(example)
                image = found.image if found.viewed else transform.view(found.image)
                images[row], labels[row] = vary(image), found.label
            except UserError:
                raise
            except (ValueError, OSError, cv2.error) as error:
                raise UserError(
                    f"{self._source.example_id(example)}: not a readable image ({_reason(error)})"
                ) from error

    def _load(self, example: int) -> Example:
        data, label = self._source.read(example)
        return self._cache.load(example, data, label, self._transform)

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise concurrent.futures.CancelledError
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(self._num_threads, "decode")
            return self._pool

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)


def train_batches(
    source: Source,
    cfg: DataConfig,
    *,
    image_size: tuple[int, int],
    channels: int,
    seed: int,
    start_step: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> BatchIterator:
    """Stream this process's share of every training batch from `start_step` on, without end.

    Args:
        source: what to read; `cfg.name` and `cfg.train_split` are not looked at.
        cfg: batch size, transform and the mean it fills with, repeats, threads and workers.
        image_size: (height, width) the model takes.
        channels: 1 or 3.
        seed: of the order and of every random crop and augmentation.
        start_step: the first batch, counted from 0.
        process_index: which contiguous slice of the global batch is wanted.
        process_count: into how many it is cut.

    Returns:
        Batches: image uint8 (b, H, W, C), label int32 (b,) or multi-hot uint8 (b, K), index int32
        (b,), the example's number in the source; b = batch_size / process_count.

    Raises:
        UserError: the batch cannot be divided evenly; while iterating, a broken or missing
            image.
    """
    batches = _Batches(
        source,
        Transform(
            cfg=cfg.transform,
            image_size=image_size,
            channels=channels,
            exact=False,
            fill=mean_color(cfg),
        ),
        batch_size=cfg.batch_size,
        rows=_rows(cfg.batch_size, process_index, process_count),
        length=sys.maxsize,
        num_threads=_num_threads(cfg.num_threads, cfg.num_workers, image_size, channels),
        seed=seed,
        first=start_step,
        repeats=cfg.repeats,
    )
    return BatchIterator(batches, num_workers=cfg.num_workers, prefetch=cfg.prefetch)


def eval_batches(
    source: Source,
    transform: TransformConfig,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    channels: int,
    process_index: int = 0,
    process_count: int = 1,
    num_threads: int = 0,
    num_workers: int = 0,
    prefetch: int = 2,
) -> BatchIterator:
    """Stream every example once, in the stored order, the last batch padded.

    All processes yield the same number of batches. Arguments are as in `train_batches`.

    Returns:
        Batches as `train_batches` gives, and mask float32 (b,): 1 for an example, 0 for padding
        (image 0, label 0, index -1).

    Raises:
        UserError: a transform that draws at random, or a batch that cannot be divided evenly;
            while iterating, a broken or missing image.
    """
    check_transform(transform)
    if is_random(transform):
        raise UserError(
            "an evaluation's transform must not be random: choose the crop 'center', 'resize' or "
            "'none', no flip, no affine part, no auto_augment and no color_jitter"
        )
    batches = _Batches(
        source,
        Transform(cfg=transform, image_size=image_size, channels=channels, exact=True),
        batch_size=batch_size,
        rows=_rows(batch_size, process_index, process_count),
        length=math.ceil(len(source) / batch_size),
        num_threads=_num_threads(num_threads, num_workers, image_size, channels),
        seed=None,
    )
    return BatchIterator(batches, num_workers=num_workers, prefetch=prefetch)


def batch_spec(
    source: Source,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    channels: int,
    masked: bool = False,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype of each array of a global batch; `masked` for an evaluation's."""
    rows = (batch_size,)
    classes = (source.num_classes,) if source.multi_label else ()
    spec = {
        "image": jax.ShapeDtypeStruct((*rows, *image_size, channels), np.uint8),
        "label": jax.ShapeDtypeStruct(rows + classes, _label_dtype(source)),
        "index": jax.ShapeDtypeStruct(rows, np.int32),
    }
    return spec | ({"mask": jax.ShapeDtypeStruct(rows, np.float32)} if masked else {})


def _reason(error: Exception) -> str:
    # The system's and OpenCV's full texts repeat paths, object addresses or source lines.
    short = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
    return short.splitlines()[0].strip() if short.strip() else type(error).__name__


def _label_dtype(source: Source) -> np.dtype:
    return np.dtype(np.uint8 if source.multi_label else np.int32)


def _rows(batch_size: int, process_index: int, process_count: int) -> range:
    if batch_size % process_count:
        raise UserError(
            f"batch_size={batch_size} cannot be divided evenly over {process_count} processes"
        )
    size = batch_size // process_count
    return range(process_index * size, (process_index + 1) * size)


def _num_threads(asked: int, num_workers: int, image_size: tuple[int, int], channels: int) -> int:
    if asked:
        return asked
    if math.prod(image_size) * channels <= _TINY:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores this process may use
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, 2 * cores // max(num_workers, 1))
