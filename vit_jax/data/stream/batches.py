# SPDX-License-Identifier: Apache-2.0
"""Batches made ahead by threads: examples read or kept in memory, varied and put in rows.

`choose` says how many threads and processes load, by cores, and by how long a read takes in a
bucket. The processes are Grain's workers, which end when this one does.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Int

from vit_jax.data.account import dataset_of
from vit_jax.data.order import ClassBalance, stream_indices
from vit_jax.data.sources.base import Example, Source, is_remote
from vit_jax.data.sources.captions import Tokenized, drawn
from vit_jax.data.sources.partition import full_name
from vit_jax.data.stream import shared
from vit_jax.data.stream.transform import Draw, Loaded, Pixels, View, draws
from vit_jax.devices import hardware
from vit_jax.errors import DataError, UserError

# Below this many values an image is quicker decoded than handed to another Python thread.
_TINY = 4096
# Small photographs that a core decodes in a second; the readers must deliver as many.
_IMAGES_PER_SECOND = 1600
# Limits of a process's readers: a driver's connections, and enough where a read seems quick.
_MOST, _LEAST = 96, 16
# Batches that are decoded at once, at least, by the threads that ask for them and their helpers.
_DECODED = 2
# With more cores, Python is the bottleneck of a process.
_CORES_OF_A_PROCESS = 8
Batch: TypeAlias = dict[str, np.ndarray]
_Vary = Callable[[Any], Pixels]
Reads = Mapping[int, concurrent.futures.Future[Example]]
# Batches of a worker that are in a queue, or kept by who took them.
_UNDER_WAY = 5
_SMALL = 1 << 16  # bytes of labels, which are quicker sent than put into memory of their own
# Bytes in a batch for the message about an unreadable example.
_REASON = 200
# Most bytes of decoded images in a process: CIFAR's 50,000 images of 32x32 take 154 MB.
MAX_CACHED_BYTES = 256 * 2**20


class Loading(NamedTuple):
    """The threads and processes that load batches; they do not affect what a batch holds."""

    num_threads: int  # decode, and read files of this machine, in each process
    num_readers: int  # threads that read ahead from a bucket, in each process
    num_workers: int  # processes besides this one
    prefetch: int  # batches prepared ahead, by each process
    # Batches in work: two that are decoded, so that no thread idles at the end of one, and those
    # that are read from a bucket meanwhile.
    at_once: int


def choose(
    source: Source,
    views: Mapping[str, View],
    rows: int,
    *,
    num_threads: int,
    num_workers: int,
    prefetch: int,
) -> Loading:
    """Choose the numbers that are 0; if the source is in a bucket, time some reads first.

    Args:
        source: the examples.
        views: the images of an example.
        rows: examples of a batch in this process.
        num_threads: as in `DataConfig`.
        num_workers: likewise.
        prefetch: likewise.

    Raises RemoteError: the bucket cannot be read.
    """
    cores, far = hardware.num_cores(), is_remote(source)
    if far and not num_workers and not num_threads and cores > _CORES_OF_A_PROCESS:
        num_workers = cores // _CORES_OF_A_PROCESS
    tiny = sum(math.prod(view.shape) for view in views.values()) <= _TINY
    threads = 1 if tiny else max(1, cores // max(num_workers, 1))
    readers, at_once = 0, min(prefetch, 2)
    if far:
        needed = _seconds(source) * _IMAGES_PER_SECOND * cores / max(num_workers, 1)
        readers = min(max(math.ceil(needed), _LEAST), _MOST)
        # Besides those that are decoded, as many as the readers can read.
        at_once += math.ceil(readers / rows)
    return Loading(num_threads or threads, readers, num_workers, max(prefetch, at_once), at_once)


def _seconds(source: Source) -> float:
    """Return the seconds that a read takes over an open connection."""
    took = 0.0
    for index in {0, len(source) // 2, len(source) - 1}:
        start = time.perf_counter()
        try:
            source.read(index)
        except DataError:  # reported when a batch needs it
            continue
        took = time.perf_counter() - start
    return took


@runtime_checkable
class BatchSource(Protocol):
    """Random access to batches, which can be pickled; `close` stops its threads."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch: ...

    def close(self) -> None:
        """Stop; batches that are still in work fail."""


class BatchIterator(Iterator[Batch], contextlib.AbstractContextManager["BatchIterator"]):
    """An iterator over batches that starts to prepare them when it is created.

    `close()` or a `with` block stops its threads and processes. Otherwise they stop with the
    program, after preparing the requested batches.
    """

    def __init__(self, batches: BatchSource, loading: Loading) -> None:
        # The list holds the only reference: Grain's iterator cleans up once more when collected,
        # which fails loudly where modules are being torn down. The finalizer runs once, at
        # close(), when this is collected, or at exit before that happens.
        self._open = [(Processes if loading.num_workers else Threads)(batches, loading)]
        self._finalizer = weakref.finalize(self, _close, self._open, batches)

    def __next__(self) -> Batch:
        if not self._open:
            raise ValueError("these batches were closed")
        return next(self._open[0])

    def close(self) -> None:
        """Stop preparing batches; wait for processes, but not for threads."""
        self._finalizer()

    def __exit__(self, *_: object) -> None:
        self.close()


class Threads:
    """Prepares batches ahead in this process; Grain would double the time of a digits batch."""

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


class Processes:
    """Prepares batches ahead in Grain's worker processes, each with threads of its own."""

    def __init__(self, batches: BatchSource, loading: Loading) -> None:
        import grain  # late: it takes a second to import
        from absl import flags

        if not flags.FLAGS.is_parsed():  # Grain hands its flags to the workers
            flags.FLAGS.mark_as_parsed()
        # In work, made ahead, under way, and kept by who takes them.
        count = loading.at_once + loading.prefetch + _UNDER_WAY
        room = shared.size_of(batches.arrays()) if isinstance(batches, Batches) else 0
        workers = range(loading.num_workers if room and shared.available() else 0)
        self._places = [shared.Slots(worker, room, count) for worker in workers]
        options = grain.ReadOptions(loading.at_once, loading.prefetch)
        dataset = grain.MapDataset.source(_InWorker(batches)).to_iter_dataset(options)
        few = grain.experimental.DatasetOptions(min_shm_size=_SMALL)
        dataset = grain.experimental.WithOptionsIterDataset(dataset, few).mp_prefetch(
            grain.MultiprocessingOptions(loading.num_workers, per_worker_buffer_size=1),
            worker_init_fn=functools.partial(_start_worker, places=self._places),
        )
        self._iterator = iter(dataset)
        self._iterator.start_prefetch()

    def __next__(self) -> Batch:
        return shared.opened(self._places, next(self._iterator))

    def close(self) -> None:
        """Stop the processes, and wait for them."""
        self._iterator.close()
        for each in self._places:
            each.close()


class _InWorker:
    """Random access to batches as they leave a worker."""

    def __init__(self, batches: BatchSource) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        if not _own:
            return self._batches[index]
        with _own[0].taken() as room:
            batch = self._batches[index]
            return batch if room is None else _own[0].packed(room, batch)


# In a worker process: the places of its batches, if there are any.
_own: list[shared.Slots] = []


def _close(iterators: list[Any], batches: BatchSource) -> None:
    iterators.pop().close()
    batches.close()


def _start_worker(worker_index: int, worker_count: int, places: Sequence[shared.Slots]) -> None:
    _own.extend(places[worker_index : worker_index + 1])
    # Ctrl-C, a scheduler's SIGTERM and a closed terminal reach every process of the job. The main
    # process decides what to finish: it may still want batches, and stops its workers itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    # A killed main process cannot stop its workers, and Grain's would wait for it for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


class Decoded(NamedTuple):
    """An example on its way to the model."""

    images: tuple[Loaded, ...]  # one for each transform: decoded or, if `viewed`, after `view`
    viewed: bool
    fields: Mapping[str, Any]  # the source's fields besides the image


class PixelCache(dict[int, Decoded]):
    """Decoded examples by index, kept only if a whole dataset of such examples fits.

    `transforms` are a `Transform` each, or what `load` and `view` as one.
    """

    def __init__(
        self, num_examples: int, transforms: Sequence[Any], max_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self._num_examples, self._max_bytes = num_examples, max_bytes
        self._transforms = transforms

    def load(
        self, index: int, data: bytes, fields: Mapping[str, Any], name: Callable[[], str] = str
    ) -> Decoded:
        """Decode and view an example, and keep the latest stage that fits; raises as `Transform`.

        All transforms of a batch read files by the same rules, so an image is decoded once for each
        number of channels. `name` is for a warning.
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

    Element i holds the `rows` of batch `first + i`: the views, and the source's other `fields`. The
    thread that asks for it decodes. Where `at_once` threads ask, two of them decode, and the rest
    of `num_threads` others help both; of batches with few rows, more of them decode. If reads wait
    for a network, `num_readers` threads read ahead, also for those who ask and do not decode yet.

    Tokens of a `Tokenized` source are those of a caption drawn for the position, or of the first.

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
    at_once: int = 1
    num_readers: int = 0
    seed: int | None
    first: int = 0
    repeats: int = 1
    balance: ClassBalance | None = None
    max_broken: int = 0
    fill: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        self._draws = self._all_draws()
        # The draws of one view share a transform and its decoded image.
        transforms = list(dict.fromkeys(draw.transform for draw in self._draws))
        self._stage = [transforms.index(draw.transform) for draw in self._draws]
        # One pass sees each example once, so there is no need to keep any.
        max_bytes = 0 if self.seed is None else MAX_CACHED_BYTES
        self._cache = PixelCache(len(self.source), transforms, max_bytes)
        # Fields of the source, and those that are made of a caption once it is drawn.
        tokenized = self.source if isinstance(self.source, Tokenized) else None
        inner = self.source if tokenized is None else tokenized.source
        self._read, self._kept = inner.read, [key for key in self.fields if key in inner.spec]
        self._made = [key for key in self.fields if key not in inner.spec]
        self._tokenized = tokenized if self._made else None
        self._lock = threading.Lock()
        # More where a batch has fewer rows than it would have helpers.
        self._decoded = max(_DECODED, math.ceil(self.num_threads / max(len(self.rows), 1)))
        self._turns = threading.Semaphore(self._decoded)
        self._pools: dict[str, concurrent.futures.ThreadPoolExecutor] = {}
        self._closed = False

    def _all_draws(self) -> list[Draw]:
        return draws(self.views, exact=self.seed is None, fill=self.fill)

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return functools.partial(type(self), **settings), ()

    def __len__(self) -> int:
        return self.length

    def arrays(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """List shape and dtype of the views of a batch, which are nearly all of its bytes."""
        return [((len(self.rows), *view.shape), view.dtype) for view in self.views.values()]

    def __getitem__(self, index: int) -> Batch:
        positions = (self.first + int(index)) * self.batch_size + self.rows
        order = (len(self.source), self.seed, self.repeats, self.balance)
        batch = self._empty(len(positions))
        batch["index"] = stream_indices(positions, *order)
        return self._filled(batch, positions)

    def _empty(self, count: int) -> Batch:
        """Return the arrays of views and fields for so many examples."""
        spec = self.source.spec
        return {
            **{key: shared.empty((count, *v.shape), v.dtype) for key, v in self.views.items()},
            **{key: np.zeros((count, *spec[key].shape), spec[key].dtype) for key in self.fields},
        }

    def _filled(self, batch: Batch, positions: np.ndarray) -> Batch:
        """Fill the arrays of a batch, a row for each position of the stream."""
        count = len(positions)
        if self.seed is None:
            batch["mask"] = (batch["index"] >= 0).astype(np.float32)
        else:
            batch["broken"] = np.full(count, -1, np.int32)
            batch["reason"] = np.zeros(count, f"S{_REASON}")
        fill = functools.partial(self._fill, batch, positions, self._ahead(batch["index"]))
        with self._turns:  # where many batches wait for a network, not all of them decode
            self._share(fill, count)
        return batch

    def _share(self, fill: Callable[[range], None], count: int) -> None:
        """Fill rows together with the helpers that are free, some at a time, until none is left.

        This thread takes rows as well: it would otherwise be woken for nothing but to wait again,
        and who is woken takes Python's lock from those who decode.
        """
        helpers = max(self.num_threads - min(self.at_once, self._decoded), 0)
        if not helpers:
            fill(range(count))
            return
        step = max(1, count // (4 * (1 + helpers)))
        left = iter([range(i, min(i + step, count)) for i in range(0, count, step)])
        failed: dict[int, Exception] = {}

        def work() -> None:
            for rows in left:
                try:
                    fill(rows)
                except Exception as error:
                    failed[rows.start] = error

        pool = self._threads("decode", helpers)
        helping = [pool.submit(work) for _ in range(helpers)]
        work()
        for each in helping:
            if not each.cancel():
                each.result()
        if failed:
            raise failed[min(failed)]  # the same one, whichever thread was first

    def _ahead(self, index: np.ndarray) -> Reads:
        """Start to read the examples that are not kept; return a future for each."""
        if not self.num_readers:
            return {}
        wanted = (each for each in index.tolist() if each >= 0 and each not in self._cache)
        submit = self._threads("read", self.num_readers).submit
        return {each: submit(self._read, each) for each in dict.fromkeys(wanted)}

    def _fill(self, batch: Batch, positions: np.ndarray, reads: Reads, rows: range) -> None:
        examples = batch["index"][rows.start : rows.stop].tolist()
        variations = self._variations(positions[rows.start : rows.stop])
        captions: dict[int, tuple[str, ...]] = {}
        for row, example, varies in zip(rows, examples, variations, strict=True):
            if example < 0:
                self._blank(batch, row)
                continue
            try:
                captions[row] = self._put(batch, row, example, varies, reads)
            except DataError as error:
                if self.seed is None:
                    advice = f"repair or remove it, {_all_such(self.source)}; none is replaced here"
                    raise DataError(f"{error} ({advice})") from error
                at = positions[row : row + 1]
                captions[row] = self._replace(batch, row, example, at, error)
        if self._tokenized is not None and captions:
            found = [*captions]
            texts = drawn([*captions.values()], self.seed, positions[found])
            made = self._tokenized.tokens(texts)
            for key in self._made:
                batch[key][found] = made[key]

    def _variations(self, positions: np.ndarray) -> Iterator[tuple[_Vary, ...]]:
        """Yield for each position one function per draw, which varies the decoded image."""
        seed = self.seed or 0
        each = [d.transform.variations(seed, positions, d.number) for d in self._draws]
        return zip(*each, strict=True)

    def _put(
        self, batch: Batch, row: int, example: int, varies: Sequence[_Vary], reads: Reads
    ) -> tuple[str, ...]:
        """Read and vary one example and write it to a row; return its captions, if they are used.

        Raises DataError: it cannot be used.
        """
        try:
            found = self._cache.get(example) or self._load(example, reads)
            self._make(batch, row, found, varies)
            for key in self._kept:
                batch[key][row] = found.fields[key]
            return found.fields.get("captions", ())
        except UserError:
            raise
        except (ValueError, OSError, cv2.error) as error:
            name, why = self.source.example_id(example), _reason(error)
            raise DataError(f"{name}: not a readable image ({why})") from error

    def _make(self, batch: Batch, row: int, found: Decoded, varies: Sequence[_Vary]) -> None:
        """Vary the images of an example and write them to a row."""
        for draw, stage, vary in zip(self._draws, self._stage, varies, strict=True):
            image = found.images[stage]
            image = vary(image if found.viewed else draw.transform.view(image))
            self._write(batch, draw, row, image)

    def _write(self, batch: Batch, draw: Draw, row: int, image: Pixels) -> None:
        batch[draw.array][row if draw.index is None else (row, draw.index)] = image

    def _blank(self, batch: Batch, row: int) -> None:
        for key in self.views:
            batch[key][row] = 0

    def _load(self, example: int, reads: Reads) -> Decoded:
        found = reads[example].result() if example in reads else self._read(example)
        fields = {name: found[name] for name in self._kept}
        label = fields.get("label")
        if self.seed is not None and isinstance(label, int) and label < 0:
            name = self.source.example_id(example)
            raise DataError(f"{name}: the label is {label}: an example without a label")
        if self._tokenized is not None:
            fields["captions"] = found["captions"]
            if not found["captions"]:
                raise DataError(f"{self.source.example_id(example)}: it has no caption")
        name = functools.partial(self.source.example_id, example)
        return self._cache.load(example, found["image"], fields, name)

    def _replace(
        self, batch: Batch, row: int, example: int, position: np.ndarray, error: DataError
    ) -> tuple[str, ...]:
        """Put the next readable example in a row, and return what `_put` does.

        Raises DataError: too many are broken.
        """
        if not self.max_broken:
            advice = "repair it, or set data.max_broken=N to replace up to N by other examples"
            raise DataError(f"{error} ({_all_such(self.source)}); {advice}") from error
        count = len(self.source)
        tries = min(self.max_broken, count - 1)
        for step in range(1, tries + 1):
            other = (example + step) % count
            # Draw anew from the position, since the unreadable example may have used the generator.
            (varies,) = self._variations(position)
            try:
                captions = self._put(batch, row, other, varies, {})
            except DataError:
                continue
            name = self.source.example_id(example)
            batch["index"][row], batch["broken"][row] = other, example
            batch["reason"][row] = str(error).removeprefix(f"{name}: ").encode(errors="replace")
            return captions
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
    """Name the command that lists all unusable examples of a dataset."""
    name = shlex.quote(dataset_of(source.name).removeprefix("./"))
    plain = name if "/" in name or full_name(name) != name else f"./{name}"
    return f"`vit_jax check-data {plain}` lists all such"


def _reason(error: Exception) -> str:
    # The system's and OpenCV's full texts repeat paths, object addresses or source lines.
    short = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
    return short.splitlines()[0].strip() if short.strip() else type(error).__name__
