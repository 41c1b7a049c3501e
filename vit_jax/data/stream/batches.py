# SPDX-License-Identifier: Apache-2.0
"""One batch: its examples read or kept in memory, varied and put in rows, by a pool of threads."""

import concurrent.futures
import dataclasses
import functools
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Int

from vit_jax.data.account import dataset_of
from vit_jax.data.order import Balance, stream_indices
from vit_jax.data.sources.base import Example, Source
from vit_jax.data.sources.partition import full_name
from vit_jax.data.stream.prefetch import Batch
from vit_jax.data.stream.transform import Loaded, Pixels, Transform, View, draws
from vit_jax.errors import DataError, UserError

_Vary = Callable[[Any], Pixels]
_Reads = Mapping[int, concurrent.futures.Future[Example]]

# Bytes of the message about an unreadable example in its batch.
_REASON = 200


# What the images of one data set may take in one process: CIFAR's 50,000 of 32x32 take 154 MB.
MAX_CACHED_BYTES = 256 * 2**20


class Decoded(NamedTuple):
    """An example on its way to the model."""

    images: tuple[Loaded, ...]  # of each transform, as it was decoded or, if `viewed`, after `view`
    viewed: bool
    fields: Mapping[str, Any]  # the source's other ones


class PixelCache(dict[int, Decoded]):
    """Decoded examples by index, where as many of their size fit as the data set has."""

    def __init__(
        self, num_examples: int, transforms: Sequence[Transform], max_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self._num_examples, self._max_bytes = num_examples, max_bytes
        self._transforms = transforms

    def load(
        self, index: int, data: bytes, fields: Mapping[str, Any], name: Callable[[], str] = str
    ) -> Decoded:
        """Decode and view an example and keep the later stage that fits; raises as `Transform`.

        What `load` returns depends on nothing but the channels, where the transforms are several:
        all of a batch read by one rule. `name` is for a warning.
        """
        decoders = {transform.channels: transform for transform in self._transforms}
        decoded = {channels: each.load(data, name) for channels, each in decoders.items()}
        images = tuple(decoded[transform.channels] for transform in self._transforms)
        views = tuple(t.view(image) for t, image in zip(self._transforms, images, strict=True))
        for stage, viewed in ((views, True), (images, False)):
            # By identity: transforms may share an image.
            arrays = {id(image): image for image in stage if isinstance(image, np.ndarray)}
            num_bytes = sum(array.nbytes for array in arrays.values())
            pixels = all(id(image) in arrays for image in stage)
            if pixels and num_bytes * self._num_examples <= self._max_bytes:
                # A view would keep the whole array.
                kept = {key: array.copy() for key, array in arrays.items()}
                for array in kept.values():
                    array.flags.writeable = False
                self[index] = Decoded(tuple(kept[id(image)] for image in stage), viewed, fields)
                break
        return Decoded(views, True, fields)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Batches:
    """Random access to whole batches.

    Element i is batch `first + i` of the views and the source's other `fields`, only `rows` of it.
    They are spread over a thread pool: all cores work on the batch that is needed next. Where reads
    wait for a network, `num_readers` threads do them ahead, and nothing else.

    `seed` None is one pass in the stored order, the last batch padded. With `max_broken` above 0
    the next readable example replaces an unreadable one at its position of the stream, so that the
    batch is still a function of (seed, step).
    """

    source: Source
    views: Mapping[str, View]
    fields: Sequence[str]
    batch_size: int
    rows: Int[np.ndarray, " b"]
    length: int
    num_threads: int
    num_readers: int = 0
    seed: int | None
    first: int = 0
    repeats: int = 1
    balance: Balance | None = None
    max_broken: int = 0
    fill: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        self._draws = draws(self.views, exact=self.seed is None, fill=self.fill)
        # The draws of one view share a transform, and what it has decoded.
        transforms = list(dict.fromkeys(draw.transform for draw in self._draws))
        self._stage = [transforms.index(draw.transform) for draw in self._draws]
        # One pass sees each example once, so nothing is kept of it.
        max_bytes = 0 if self.seed is None else MAX_CACHED_BYTES
        self._cache = PixelCache(len(self.source), transforms, max_bytes)
        self._lock = threading.Lock()
        self._pools: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return functools.partial(Batches, **settings), ()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        positions = (self.first + int(index)) * self.batch_size + self.rows
        count, spec = len(positions), self.source.spec
        order = (len(self.source), self.seed, self.repeats, self.balance)
        batch: Batch = {
            **{key: np.empty((count, *v.shape), np.uint8) for key, v in self.views.items()},
            **{key: np.zeros((count, *spec[key].shape), spec[key].dtype) for key in self.fields},
            "index": stream_indices(positions, *order),
        }
        if self.seed is None:
            batch["mask"] = (batch["index"] >= 0).astype(np.float32)
        else:
            batch["broken"] = np.full(count, -1, np.int32)
            batch["reason"] = np.zeros(count, f"S{_REASON}")
        fill = functools.partial(self._fill, batch, positions, self._ahead(batch["index"]))
        if self.num_threads == 1:
            fill(range(count))
        else:
            step = max(1, count // (4 * self.num_threads))
            chunks = [range(i, min(i + step, count)) for i in range(0, count, step)]
            # It raises what a thread raised.
            list(self._threads("decode", self.num_threads).map(fill, chunks))
        return batch

    def _ahead(self, index: np.ndarray) -> _Reads:
        """Start to read examples that are not kept; returns what each will be."""
        if not self.num_readers:
            return {}
        wanted = (each for each in index.tolist() if each >= 0 and each not in self._cache)
        submit = self._threads("read", self.num_readers).submit
        return {each: submit(self.source.read, each) for each in dict.fromkeys(wanted)}

    def _fill(self, batch: Batch, positions: np.ndarray, reads: _Reads, rows: range) -> None:
        examples = batch["index"][rows.start : rows.stop].tolist()
        variations = self._variations(positions[rows.start : rows.stop])
        for row, example, varies in zip(rows, examples, variations, strict=True):
            if example < 0:
                for key in self.views:
                    batch[key][row] = 0
                continue
            try:
                self._put(batch, row, example, varies, reads)
            except DataError as error:
                if self.seed is None:
                    advice = f"an evaluation replaces none; {_all_such(self.source)}"
                    raise DataError(f"{error} ({advice})") from error
                self._replace(batch, row, example, positions[row : row + 1], error)

    def _variations(self, positions: np.ndarray) -> Iterator[tuple[_Vary, ...]]:
        """Give, for each position, what each of its draws does to the decoded image."""
        seed = self.seed or 0
        each = [d.transform.variations(seed, positions, d.number) for d in self._draws]
        return zip(*each, strict=True)

    def _put(
        self, batch: Batch, row: int, example: int, varies: Sequence[_Vary], reads: _Reads
    ) -> None:
        """Read, vary and write one example; raises DataError: it cannot be used."""
        try:
            found = self._cache.get(example) or self._load(example, reads)
            for draw, stage, vary in zip(self._draws, self._stage, varies, strict=True):
                image = found.images[stage]
                image = vary(image if found.viewed else draw.transform.view(image))
                where = row if draw.index is None else (row, draw.index)
                batch[draw.array][where] = image
            for key in self.fields:
                batch[key][row] = found.fields[key]
        except UserError:
            raise
        except (ValueError, OSError, cv2.error) as error:
            name, why = self.source.example_id(example), _reason(error)
            raise DataError(f"{name}: not a readable image ({why})") from error

    def _load(self, example: int, reads: _Reads) -> Decoded:
        found = reads[example].result() if example in reads else self.source.read(example)
        fields = {name: found[name] for name in self.fields}
        label = fields.get("label")
        if self.seed is not None and isinstance(label, int) and label < 0:
            name = self.source.example_id(example)
            raise DataError(f"{name}: the label is {label}: an example without a label")
        name = functools.partial(self.source.example_id, example)
        return self._cache.load(example, found["image"], fields, name)

    def _replace(
        self, batch: Batch, row: int, example: int, position: np.ndarray, error: DataError
    ) -> None:
        """Put the next readable example in a row; raises DataError: too many are broken."""
        if not self.max_broken:
            advice = "repair it, or set data.max_broken=N to replace up to N by other examples"
            raise DataError(f"{error} ({_all_such(self.source)}); {advice}") from error
        count = len(self.source)
        tries = min(self.max_broken, count - 1)
        for step in range(1, tries + 1):
            other = (example + step) % count
            # The draws depend on the position: draw anew, since the unreadable one may have drawn.
            (varies,) = self._variations(position)
            try:
                self._put(batch, row, other, varies, {})
            except DataError:
                continue
            name = self.source.example_id(example)
            batch["index"][row], batch["broken"][row] = other, example
            batch["reason"][row] = str(error).removeprefix(f"{name}: ").encode(errors="replace")
            return
        raise DataError(
            f"{error}; nor can the {tries} after it be used, and data.max_broken="
            f"{self.max_broken} allows no more"
        ) from error

    def _threads(self, task: str, count: int) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise concurrent.futures.CancelledError
            if task not in self._pools:
                self._pools[task] = concurrent.futures.ThreadPoolExecutor(count, task)
            return self._pools[task]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for pool in self._pools.values():
                pool.shutdown(wait=False, cancel_futures=True)


def _all_such(source: Source) -> str:
    """Say which command lists all examples of a dataset that cannot be used."""
    name = shlex.quote(dataset_of(source.name).removeprefix("./"))
    plain = name if "/" in name or full_name(name) != name else f"./{name}"
    return f"`vit_jax prepare {plain} --check` lists all such"


def _reason(error: Exception) -> str:
    # The system's and OpenCV's full texts repeat paths, object addresses or source lines.
    short = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
    return short.splitlines()[0].strip() if short.strip() else type(error).__name__
