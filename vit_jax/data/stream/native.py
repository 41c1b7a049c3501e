# SPDX-License-Identifier: Apache-2.0
"""Batches of images that keep their shapes: rows of patches, one image or several to a row.

As every batch, one is a function of the seed and the step: the most patches of an image, drawn for
the step; its box and what else is drawn, for its position; and its place, by the sizes of all
images of the batch, which each process reads from their headers.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.data.augment import Policy, parse
from vit_jax.data.config import (
    AS_SHOWN,
    GRIDS,
    Crop,
    DataConfig,
    Reading,
    TransformConfig,
    crop_ranges,
)
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.data.images.header import image_size, orientation
from vit_jax.data.images.native import native_grid, patchify
from vit_jax.data.order import ExampleRng, stream_indices
from vit_jax.data.stream.batches import Batch, Batches
from vit_jax.data.stream.packing import Packed, pack, slots
from vit_jax.data.stream.transform import Draw, Pixels, View
from vit_jax.errors import DataError

# Where the words begin in Philox's counter, far from those that order and change the examples.
_LENGTHS = 5 << 192
_WORD = 2**64
_PLANS = 8  # kept; batches in work are fewer
GridOf = Callable[[int, int], tuple[int, int]]  # (height, width) of a box -> its patches


def drawn_length(lengths: tuple[int, ...], seed: int, step: int) -> int:
    """Return the most patches of the images of a step, a function of the seed and the step."""
    if len(lengths) == 1:
        return lengths[0]
    # Raw words, whose values NumPy guarantees (NEP 19).
    words = np.random.Philox(key=np.array([seed % _WORD, step], np.uint64), counter=_LENGTHS)
    return lengths[int(words.random_raw()) * len(lengths) // _WORD]


def batch_shapes(
    cfg: DataConfig, views: Mapping[str, View], fields: Mapping[str, Any]
) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return shape and dtype of the arrays of a batch of native images, at its longest.

    `fields` have the shape and the dtype of one example's.
    """
    (name, view), *_ = views.items()
    length, values = view.shape
    lead = (cfg.batch_size,)
    if cfg.pack:
        lead = (cfg.pack, slots(cfg.batch_size, cfg.pack, length))
    found = {name: ((lead[0], length, values), view.dtype), GRIDS: ((*lead, 2), np.int32)}
    return found | {key: ((*lead, *x.shape), x.dtype) for key, x in fields.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NativeTransform:
    """A transform that keeps an image's shape, made ready to run; can be pickled."""

    cfg: TransformConfig
    patch: tuple[int, int]
    channels: int
    exact: bool
    reading: Reading = AS_SHOWN
    fill: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_policy", parse(self.cfg.auto_augment, self.fill))

    _policy: Policy | None = dataclasses.field(init=False, repr=False, compare=False)

    def load(self, data: bytes, name: Callable[[], str] = str) -> Pixels:
        """Decode an image; raises ValueError: the bytes are none. `name` is for a warning."""
        return decode(data, self.channels, self.reading, exact=self.exact, name=name)

    def view(self, image: Pixels) -> Pixels:
        """Return the image: all its steps may draw."""
        return image

    def box(self, height: int, width: int, rng: np.random.Generator) -> ops.Box:
        """Return the part of an image that is taken, drawn first of all where it is drawn."""
        if self.cfg.crop is Crop.NATIVE:
            return ops.Box(0, 0, height, width)
        area, aspect = crop_ranges(self.cfg)
        own = tuple(each * width / height for each in aspect)
        return ops.random_resized_box(rng, height, width, area, own)

    def vary(self, image: np.ndarray, rng: np.random.Generator, grid_of: GridOf) -> Pixels:
        """Apply the random operations; the result has whole patches, as `grid_of` has its box."""
        box = self.box(image.shape[0], image.shape[1], rng)
        grid = grid_of(box.height, box.width)
        rows, columns = (n * side for n, side in zip(grid, self.patch, strict=True))
        image = ops.crop_resize(image, box, (rows, columns), self.cfg.resize)
        if self.cfg.flip and rng.random() < 0.5:
            image = ops.flip(image)
        if self._policy is not None:
            image = self._policy(np.ascontiguousarray(image), rng)
        if self.cfg.color_jitter:
            from vit_jax.data.augment.pillow import jitter  # late, as in `Transform`

            image = jitter(np.ascontiguousarray(image), self.cfg.color_jitter, rng)
        return image


def native_view(image: np.ndarray, cfg: TransformConfig, patch: tuple[int, int]) -> Pixels:
    """Bring a whole image to the patches that the evaluation's one length allows."""
    grid = native_grid(image.shape[0], image.shape[1], patch, cfg.lengths[0])
    return ops.resize(image, (grid[0] * patch[0], grid[1] * patch[1]), cfg.resize)


def as_rows(
    views: Mapping[int, np.ndarray],
    count: int,
    length: int,
    patch: tuple[int, int],
    channels: int,
    dtype: np.dtype | type = np.uint8,
) -> Batch:
    """Put images of whole patches, by their rows, into a batch of `count` rows, else empty."""
    image = np.zeros((count, length, patch[0] * patch[1] * channels), dtype)
    grids = np.zeros((count, 2), np.int32)
    for row, view in views.items():
        patches = patchify(view, patch)
        image[row, : len(patches)] = patches
        grids[row] = view.shape[0] // patch[0], view.shape[1] // patch[1]
    return {"image": image, GRIDS: grids}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NativeBatches(Batches):
    """`Batches` of one view whose images keep their shapes.

    The view is [b, L, P*Q*C] uint8, and `GRIDS` [b, 2] int32. With `pack`, `rows` are some of as
    many rows, each of S images or fewer: `GRIDS` are [b, S, 2], and all else that examples have,
    [b, S, ...], the index of none being -1.
    """

    pack: int = 0

    def __post_init__(self) -> None:
        ((self._name, self._view),) = self.views.items()
        super().__post_init__()
        self._sizes: dict[int, tuple[int, int]] = {}
        self._plans: dict[int, Packed] = {}
        self._planning = threading.Lock()

    def _all_draws(self) -> list[Draw]:
        view = self._view
        transform = NativeTransform(
            cfg=view.transform,
            patch=view.patch,
            channels=view.channels,
            exact=self.seed is None,
            reading=view.reading,
            fill=self.fill,
        )
        return [Draw(self._name, None, 0, transform)]

    def _length(self, step: int) -> int:
        return drawn_length(self._view.transform.lengths, self.seed or 0, step)

    def __getitem__(self, index: int) -> Batch:
        step = self.first + int(index)
        positions, offsets = step * self.batch_size + self.rows, np.zeros(len(self.rows), np.int32)
        lead: tuple[int, ...] = (len(self.rows),)
        if self.pack:
            plan = self._plan(step)
            images = plan.images[self.rows]
            lead, offsets = images.shape, plan.offsets[self.rows].reshape(-1)
            positions = np.where(images < 0, -1, step * self.batch_size + images).reshape(-1)
        count, spec = len(positions), self.source.spec
        shape = (len(self.rows), self._length(step), self._view.shape[1])
        batch: Batch = {
            self._name: np.zeros(shape, self._view.dtype),
            GRIDS: np.zeros((count, 2), np.int32),
            **{key: np.zeros((count, *spec[key].shape), spec[key].dtype) for key in self.fields},
            "index": self._indices(positions),
            "offset": offsets,
        }
        batch = self._filled(batch, positions)
        del batch["offset"]
        if self.pack:
            one = {self._name: batch.pop(self._name)}
            batch = one | {key: x.reshape(*lead, *x.shape[1:]) for key, x in batch.items()}
        return batch

    def _indices(self, positions: np.ndarray) -> np.ndarray:
        """Return the examples at positions in any order, -1 at a position of -1."""
        found = np.full(len(positions), -1, np.int32)
        order = np.argsort(positions, kind="stable")
        order = order[positions[order] >= 0]
        if len(order):
            how = (len(self.source), self.seed, self.repeats, self.balance)
            found[order] = stream_indices(positions[order], *how)
        return found

    def _variations(self, positions: np.ndarray) -> Iterator[tuple[Any, ...]]:
        step, transform = int(positions.max()) // self.batch_size, self._draws[0].transform
        rng = ExampleRng(self.seed or 0)
        same = functools.partial(
            native_grid, patch=self._view.patch, length=self._length(max(step, 0))
        )
        plan = self._plan(step) if self.pack and step >= 0 else None
        for position in positions.tolist():
            if position < 0:
                yield (None,)
                continue
            grid_of: GridOf = same
            if plan is not None:
                grid = tuple(plan.grids[position % self.batch_size].tolist())
                grid_of = lambda height, width, grid=grid: grid  # noqa: E731
            yield (functools.partial(transform.vary, rng=rng(position), grid_of=grid_of),)

    def _write(self, batch: Batch, draw: Draw, row: int, image: Pixels) -> None:
        patch, offset = self._view.patch, int(batch["offset"][row])
        patches = patchify(image, patch)
        at = row // (len(batch[GRIDS]) // len(batch[draw.array]))
        batch[draw.array][at, offset : offset + len(patches)] = patches
        batch[GRIDS][row] = image.shape[0] // patch[0], image.shape[1] // patch[1]

    def _blank(self, batch: Batch, row: int) -> None:
        """Leave what is zero already."""

    def _plan(self, step: int) -> Packed:
        """Return where the images of the whole batch of a step lie."""
        with self._planning:
            if step not in self._plans:
                self._plans[step] = self._packed(step)
                while len(self._plans) > _PLANS:
                    del self._plans[next(iter(self._plans))]
            return self._plans[step]

    def _packed(self, step: int) -> Packed:
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        examples = self._indices(positions).tolist()
        unknown = [each for each in dict.fromkeys(examples) if each not in self._sizes]
        if self.num_threads == 1 and not self.num_readers:
            self._sizes |= zip(unknown, map(self._size, unknown), strict=True)
        else:
            pool = self._threads("sizes", max(self.num_threads, self.num_readers))
            self._sizes |= zip(unknown, pool.map(self._size, unknown), strict=True)
        transform, rng = self._draws[0].transform, ExampleRng(self.seed or 0)
        boxes = [
            transform.box(*self._sizes[example], rng(position))
            for example, position in zip(examples, positions.tolist(), strict=True)
        ]
        sizes = np.array([(box.height, box.width) for box in boxes])
        return pack(sizes, self._view.patch, self.pack, self._length(step))

    def _size(self, example: int) -> tuple[int, int]:
        """Return the (height, width) of an image as it is decoded; of a broken one, a patch's."""
        try:
            data = self._read(example)["image"]
            size, turned = image_size(data), self._view.reading.upright and orientation(data) > 4
            if size is None or min(size) < 1:
                height, width = self._draws[0].transform.load(data).shape[:2]
                return height, width
            return (size[1], size[0]) if turned else size
        except (ValueError, OSError, DataError):  # told when it is put in its place
            return self._view.patch
