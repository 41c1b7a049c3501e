# SPDX-License-Identifier: Apache-2.0
"""The size of an image as it is shown, and targets brought upright as their image is.

Annotations are of the image that is shown, or of the one that is stored: where EXIF turns an image,
the sizes tell which. Where they do not, for a square or an image upside down, annotations are taken
to be of the shown one, and a line says so.
"""

import dataclasses
import functools
import logging
from typing import NamedTuple

import numpy as np

from vit_jax.data.images import header
from vit_jax.data.images.decode import decode, turned
from vit_jax.data.targets import PixelTarget
from vit_jax.errors import shown
from vit_jax.storage import remote

_log = logging.getLogger(__name__)
HEAD = 1 << 18  # bytes of a JPEG that have its size and orientation


class Shape(NamedTuple):
    """The (height, width) of an image as it is shown, and how EXIF turns what is stored."""

    height: int
    width: int
    turn: int = 1

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def stored(self) -> tuple[int, int]:
        """(height, width) of what is stored."""
        return (self.width, self.height) if self.turn > 4 else self.size


def shape_of(data: bytes) -> Shape:
    """Return the shape of an encoded image; raises ValueError: it cannot be read."""
    turn, size = header.orientation(data), header.image_size(data)
    if size is None:  # other formats, which `decode` brings upright
        height, width = decode(data, 1).shape[:2]
        return Shape(height, width, turn)
    height, width = size
    return Shape(width, height, turn) if turn > 4 else Shape(height, width, turn)


def shape_at(place: str) -> Shape:
    """Return the shape of a file or an object; raises ValueError, OSError, RemoteError."""
    if place.lower().endswith((".jpg", ".jpeg")) and not remote.is_remote(place):
        head = remote.read_range(place, 0, HEAD)
        if header.jpeg_size(head):
            return shape_of(head)
    return shape_of(remote.read(place) if remote.is_remote(place) else header.read_file(place))


def fitted(target: PixelTarget, shape: Shape, name: str) -> PixelTarget:
    """Return a target of the shown or the stored image as one of the shown image.

    `name` is the image in messages. Raises ValueError: it is of neither.
    """
    if target.size == shape.size:
        if shape.turn > 1:
            _say_upright(name.rpartition("/")[0])
        return target
    if target.size != shape.stored:
        sizes = "{}x{}, what is known of it {}x{}".format(*shape.size, *target.size)
        raise ValueError(f"{shown(name)} is {sizes} (height x width)")
    arrays = {}
    if target.label_map is not None:
        arrays["label_map"] = turned(target.label_map[..., None], shape.turn)[..., 0]
    if target.depth is not None:
        arrays["depth"] = turned(target.depth[..., None], shape.turn)[..., 0]
    if target.masks is not None:
        stack = turned(target.masks.transpose(1, 2, 0), shape.turn)
        arrays["masks"] = np.ascontiguousarray(stack.transpose(2, 0, 1))
    if target.boxes is not None:
        arrays["boxes"] = _turned_boxes(target.boxes, shape)
    return dataclasses.replace(target, size=shape.size, **arrays)


def _turned_boxes(boxes: np.ndarray, shape: Shape) -> np.ndarray:
    x, y = boxes[:, 0::2], boxes[:, 1::2]
    if shape.turn > 4:
        x, y = y, x
    if shape.turn in (3, 4, 7, 8):
        y = shape.height - y
    if shape.turn in (2, 3, 6, 7):
        x = shape.width - x
    corners = (x.min(1), y.min(1), x.max(1), y.max(1))
    return np.stack(corners, axis=1).astype(np.float32)


@functools.cache  # once
def _say_upright(folder: str) -> None:
    what = "images that are stored turned (EXIF), with targets of their upright shape"
    _log.warning("%s has %s: these are taken as upright", shown(folder or "a dataset"), what)
