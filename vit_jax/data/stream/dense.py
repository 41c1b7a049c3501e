# SPDX-License-Identifier: Apache-2.0
"""Batches whose images have targets of pixels: classes, segments, depth.

Crop, flip and warp are drawn once for an image and its `PixelTarget`, by the generator of its
position in the stream; so the images are those of `Batches` with the same seed, and a batch is a
function of (seed, step) as ever. A crop that leaves nothing of the targets may be drawn again: the
generator goes on, and what it gives depends on the position still.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.data.checks import check_dense, check_target_kind
from vit_jax.data.images import ops, target_ops
from vit_jax.data.images.header import image_size, orientation
from vit_jax.data.order import ExampleRng
from vit_jax.data.sources.base import target_of
from vit_jax.data.stream import shared
from vit_jax.data.stream.batches import MAX_CACHED_BYTES, Batch, Batches, Decoded, Reads
from vit_jax.data.stream.transform import PLAIN_CROPS, evaluation_place
from vit_jax.data.targets import (
    DEPTH,
    IGNORED,
    LABEL_MAP,
    SEGMENT_CLASS,
    SEGMENTS,
    SEGMENTS_CUT,
    PixelTarget,
    shapes,
)
from vit_jax.errors import DataError, UserError

# What arrays of a batch hold where nothing is known, if not 0.
_NOTHING = {LABEL_MAP: IGNORED, SEGMENT_CLASS: -1}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class DenseBatches(Batches):
    """`Batches` of one view with targets, by `fields`: some of `targets.FIELDS`.

    Of H x W pixels, LABEL_MAP is int16 [b, H, W], SEGMENTS uint8 [b, T, H, ceil(W / 8)] with
    SEGMENT_CLASS int32 [b, T] and SEGMENTS_CUT int32 [b], how many segments T had no room for, and
    DEPTH float32 [b, H, W]. Boxes without masks are filled; segments that are crowds are left out.

    Raises UserError: a source without such targets, or a transform that they cannot follow; while
    iterating, DataError: a target that cannot be read, or of another size than its image.
    """

    max_segments: int = 100  # T
    min_visible: float = 0.0
    redraws: int = 0

    def __post_init__(self) -> None:
        if len(self.views) != 1 or next(iter(self.views.values())).count != 1:
            views = ", ".join(self.views)
            raise UserError(f"targets of pixels follow one view of an image, not {views}")
        ((self._name, self._view),) = self.views.items()
        check_dense(self._view.transform, "data.transform")
        check_target_kind(self.source, self.fields)
        if not self._view.reading.upright:
            raise UserError("data.upright=False: targets of pixels are of upright images; set True")
        super().__post_init__()

    def _empty(self, count: int) -> Batch:
        spec, made = self.source.spec, shapes(self._view.size, self.max_segments)
        batch: Batch = {self._name: shared.empty((count, *self._view.shape), self._view.dtype)}
        for key in self.fields:
            shape, dtype = made[key] if key in made else (spec[key].shape, spec[key].dtype)
            empty = _NOTHING.get(key, 0)
            batch[key] = np.full((count, *shape), empty, dtype)
        return batch

    def _variations(self, positions: np.ndarray) -> Iterator[tuple[Any, ...]]:
        transform, rng = self._draws[0].transform, ExampleRng(self.seed or 0)
        for position in positions.tolist():
            yield (functools.partial(transform.drawn, rng=rng(position)),)

    def _make(self, batch: Batch, row: int, found: Decoded, varies: Sequence[Any]) -> None:
        (draw,), (vary,), image = self._draws, varies, found.images[0]
        image = image if found.viewed else draw.transform.view(image)
        target: PixelTarget = found.fields["target"]
        for _ in range(1 + (0 if target_ops.is_blank(target) else self.redraws)):
            pixels, drawn = vary(image)
            move = self._geometry(target, drawn)
            seen = target_ops.moved(target, move, self.min_visible)
            if not target_ops.is_blank(seen):
                break
        self._write(batch, draw, row, pixels)
        if LABEL_MAP in batch:
            batch[LABEL_MAP][row] = target_ops.painted(seen)
        if DEPTH in batch:
            batch[DEPTH][row] = seen.depth
        if SEGMENTS in batch:
            bits, classes, left_out = target_ops.packed(seen, self.max_segments)
            batch[SEGMENTS][row] = bits
            batch[SEGMENT_CLASS][row] = classes
            if SEGMENTS_CUT in batch:
                batch[SEGMENTS_CUT][row] = left_out

    def _geometry(self, target: PixelTarget, drawn: ops.Geometry) -> ops.Geometry:
        """Return how the target follows its image, of whose crop `drawn` may not know all."""
        view = self._view
        if view.transform.crop not in PLAIN_CROPS:
            return drawn
        whole = evaluation_place(target.size, view.transform, view.size)
        return whole._replace(flip=drawn.flip, matrix=drawn.matrix)

    def _load(self, example: int, reads: Reads) -> Decoded:
        """Read an example and its target, and keep both if a whole dataset of such ones fits."""
        found = reads[example].result() if example in reads else self._read(example)
        target = self._target(example, found["image"])
        fields = {key: found[key] for key in self._kept} | {"target": target}
        name = functools.partial(self.source.example_id, example)
        decoded = self._cache.load(example, found["image"], fields, name)
        if _num_bytes(target) * len(self.source) > MAX_CACHED_BYTES:
            self._cache.pop(example, None)
        return decoded

    def _target(self, example: int, image: bytes) -> PixelTarget:
        """Read a target, and leave out its crowds.

        Raises DataError: it cannot be read, or is of another size than its image.
        """
        name = self.source.example_id(example)
        try:
            target = target_of(self.source, example)
        except UserError:
            raise
        except (ValueError, OSError) as error:
            raise DataError(f"{name}: no readable target ({error})") from error
        size = image_size(image)
        if size is None:
            pixels = self._draws[0].transform.load(image)
            size = pixels.shape[0], pixels.shape[1]
        elif orientation(image) > 4:
            size = size[1], size[0]
        if tuple(target.size) != tuple(size):
            sizes = "{}x{}, its target {}x{}".format(*size, *target.size)
            raise DataError(f"{name} is {sizes} (height x width, upright); repair or remove it")
        return target_ops.uncrowded(target)


def _num_bytes(target: PixelTarget) -> int:
    arrays = (getattr(target, field.name) for field in dataclasses.fields(target))
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
