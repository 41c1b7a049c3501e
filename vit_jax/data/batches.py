# SPDX-License-Identifier: Apache-2.0
"""One batch: its examples read, varied and put in rows, by a pool of threads."""

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Int

from vit_jax.data.pixel_cache import MAX_CACHED_BYTES, Decoded, PixelCache
from vit_jax.data.prefetch import Batch
from vit_jax.data.sources import Source
from vit_jax.data.stream import stream_indices
from vit_jax.data.transform import Pixels
from vit_jax.data.views import View, draws
from vit_jax.errors import DataError, UserError

_Vary = Callable[[Any], Pixels]

# Bytes of the message about an unreadable example in its batch.
_REASON = 200


class Batches:
    """Random access to whole batches.

    Element i is batch `first + i`. The rows of a batch are spread over a thread pool: all cores
    work on the batch that is needed next.
    """

    def __init__(
        self,
        source: Source,
        views: Mapping[str, View],
        *,
        fields: Sequence[str],
        batch_size: int,
        rows: Int[np.ndarray, " b"],
        length: int,
        num_threads: int,
        seed: int | None,
        first: int = 0,
        repeats: int = 1,
        max_broken: int = 0,
        fill: tuple[int, ...] = (128,),
    ) -> None:
        """Prepare batches of the views and the source's other `fields`, only `rows` of each.

        `seed` None is one pass in the stored order, the last batch padded. With `max_broken` above
        0 the next readable example replaces an unreadable one at its position of the stream, so
        that the batch is still a function of (seed, step).
        """
        self._source = source
        self._views = views
        self._fields = {name: source.spec[name] for name in fields}
        self._fill_color = fill
        self._draws = draws(views, exact=seed is None, fill=fill)
        # The draws of one view share a transform, and what it has decoded.
        transforms = list(dict.fromkeys(draw.transform for draw in self._draws))
        self._stage = [transforms.index(draw.transform) for draw in self._draws]
        self._batch_size = batch_size
        self._rows = rows
        self._length = length
        self._num_threads = num_threads
        self._seed = seed
        self._first = first
        self._repeats = repeats
        self._max_broken = max_broken
        # One pass sees each example once, so nothing is kept of it.
        self._cache = PixelCache(len(source), transforms, 0 if seed is None else MAX_CACHED_BYTES)
        self._lock = threading.Lock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {
            "fields": list(self._fields),
            "fill": self._fill_color,
            "batch_size": self._batch_size,
            "rows": self._rows,
            "length": self._length,
            "num_threads": self._num_threads,
            "seed": self._seed,
            "first": self._first,
            "repeats": self._repeats,
            "max_broken": self._max_broken,
        }
        return functools.partial(Batches, **settings), (self._source, self._views)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        positions = (self._first + int(index)) * self._batch_size + self._rows
        count, size = len(positions), len(self._source)
        batch: Batch = {
            **{key: np.empty((count, *v.shape), np.uint8) for key, v in self._views.items()},
            **{key: np.zeros((count, *x.shape), x.dtype) for key, x in self._fields.items()},
            "index": stream_indices(positions, size, self._seed, self._repeats),
        }
        if self._seed is None:
            batch["mask"] = (batch["index"] >= 0).astype(np.float32)
        else:
            batch["broken"] = np.full(count, -1, np.int32)
            batch["reason"] = np.zeros(count, f"S{_REASON}")
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
        examples = batch["index"][rows.start : rows.stop].tolist()
        variations = self._variations(positions[rows.start : rows.stop])
        for row, example, varies in zip(rows, examples, variations, strict=True):
            if example < 0:
                for key in self._views:
                    batch[key][row] = 0
                continue
            try:
                self._put(batch, row, example, varies)
            except DataError as error:
                if self._seed is None:
                    raise
                self._replace(batch, row, example, positions[row : row + 1], error)

    def _variations(self, positions: np.ndarray) -> Iterator[tuple[_Vary, ...]]:
        """Give, for each position, what each of its draws does to the decoded image."""
        seed = self._seed or 0
        each = [d.transform.variations(seed, positions, d.number) for d in self._draws]
        return zip(*each, strict=True)

    def _put(self, batch: Batch, row: int, example: int, varies: Sequence[_Vary]) -> None:
        """Read, vary and write one example; raises DataError: it cannot be used."""
        try:
            found = self._cache.get(example) or self._load(example)
            for draw, stage, vary in zip(self._draws, self._stage, varies, strict=True):
                image = found.images[stage]
                image = vary(image if found.viewed else draw.transform.view(image))
                where = row if draw.index is None else (row, draw.index)
                batch[draw.array][where] = image
            for key in self._fields:
                batch[key][row] = found.fields[key]
        except UserError:
            raise
        except (ValueError, OSError, cv2.error) as error:
            name, why = self._source.example_id(example), _reason(error)
            raise DataError(f"{name}: not a readable image ({why})") from error

    def _load(self, example: int) -> Decoded:
        found = self._source.read(example)
        fields = {name: found[name] for name in self._fields}
        label = fields.get("label")
        if self._seed is not None and isinstance(label, int) and label < 0:
            name = self._source.example_id(example)
            raise DataError(f"{name}: the label is {label}: an example without a label")
        return self._cache.load(example, found["image"], fields)

    def _replace(
        self, batch: Batch, row: int, example: int, position: np.ndarray, error: DataError
    ) -> None:
        """Replace an unreadable example by the next readable one, and mark the row.

        Raises DataError: none may be replaced, or more than that in a row are broken.
        """
        if not self._max_broken:
            advice = "repair it, or set data.max_broken=N to replace up to N by other examples"
            raise DataError(f"{error}; {advice}") from error
        count = len(self._source)
        tries = min(self._max_broken, count - 1)
        for step in range(1, tries + 1):
            other = (example + step) % count
            # The draws depend on the position: draw anew, since the unreadable one may have drawn.
            (varies,) = self._variations(position)
            try:
                self._put(batch, row, other, varies)
            except DataError:
                continue
            name = self._source.example_id(example)
            batch["index"][row], batch["broken"][row] = other, example
            batch["reason"][row] = str(error).removeprefix(f"{name}: ").encode(errors="replace")
            return
        raise DataError(
            f"{error}; nor can the {tries} after it be used, and data.max_broken="
            f"{self._max_broken} allows no more"
        ) from error

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


def _reason(error: Exception) -> str:
    # The system's and OpenCV's full texts repeat paths, object addresses or source lines.
    short = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
    return short.splitlines()[0].strip() if short.strip() else type(error).__name__
