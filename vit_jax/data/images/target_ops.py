# SPDX-License-Identifier: Apache-2.0
"""What a crop does to the targets of an image: the same move as its pixels', by `ops.Geometry`.

Classes, masks and depth go by the nearest pixel, as torchvision's v2 transforms take masks (torch's
"nearest": output pixel i is input pixel floor(i * in / out)). A mean of two class ids is a third
class, and a mean of two depths, at the edge of a thing before a wall, is the depth of nothing; nor
may the 0 of an unknown depth mix with a known one. Boxes are moved as numbers and clipped.
"""

import dataclasses

import cv2
import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int16, Int32, UInt8

from vit_jax.data.images.ops import Geometry
from vit_jax.data.targets import IGNORED, PixelTarget


def nearest(place: Int[np.ndarray, " n"], count: int, wanted: int) -> Int[np.ndarray, " n"]:
    """Return which of `count` pixels stand at some of `wanted` places, as torch's "nearest" does.

    Computed in float32, as there: it decides between two pixels where the product is whole.
    """
    if count == wanted:
        return place
    ratio = np.float32(count) / np.float32(wanted)
    return np.minimum((place.astype(np.float32) * ratio).astype(place.dtype), count - 1)


def _axis(full: int, move: Geometry, axis: int) -> Int[np.ndarray, " out"]:
    """Return which row (`axis` 0) or column (1) of the stored pixels each output one shows.

    -1 where there is nothing.
    """
    scaled, cut, size = move.scaled[axis], move.box[2 + axis], move.size[axis]
    place = nearest(np.arange(size), cut, size) + move.box[axis] - move.mirrored
    if move.mirrored:
        place = np.abs(place)
        place = np.minimum(place, 2 * (scaled - 1) - place)
    inside = place < scaled
    found = np.where(inside, nearest(np.where(inside, place, 0), full, scaled), -1)
    return found[::-1] if axis and move.flip else found


def moved_pixels(
    pixels: np.ndarray, move: Geometry, outside: int
) -> Int16[np.ndarray, "*n H W"] | Bool[np.ndarray, "*n H W"] | Float32[np.ndarray, "*n H W"]:
    """Move arrays [..., h, w] of numbers by the nearest pixel; `outside` where there is none."""
    rows, columns = (_axis(pixels.shape[axis - 2], move, axis) for axis in (0, 1))
    # Rows first, whose bytes lie together: a crop of a large mask then reads but what it shows.
    out = pixels.take(np.maximum(rows, 0), axis=-2).take(np.maximum(columns, 0), axis=-1)
    out[..., rows < 0, :] = outside
    out[..., columns < 0] = outside
    return out if move.matrix is None else _warped(out, move.matrix, outside)


def _warped(pixels: np.ndarray, matrix: np.ndarray, outside: int) -> np.ndarray:
    planes = pixels.view(np.uint8) if pixels.dtype == bool else pixels
    height, width = planes.shape[-2:]
    out = np.empty_like(planes)
    for i in np.ndindex(planes.shape[:-2]):
        out[i] = cv2.warpAffine(
            np.ascontiguousarray(planes[i]),
            matrix,
            (width, height),
            flags=cv2.INTER_NEAREST,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=float(outside),
        )
    return out.view(pixels.dtype)


def moved_boxes(
    boxes: Float[np.ndarray, "n 4"], full: tuple[int, int], move: Geometry
) -> Float32[np.ndarray, "n 4"]:
    """Move boxes (left, top, right, bottom) of an image of `full` (h, w); they may lie outside.

    What a matrix turns becomes the least upright box around it. Mirrored pixels get no box.
    """
    corners = boxes.astype(np.float64).reshape(-1, 2, 2)
    factor = np.array([move.scaled[1] / full[1], move.scaled[0] / full[0]])
    start = np.array([move.box.left, move.box.top]) - move.mirrored
    zoom = np.array([move.size[1] / move.box.width, move.size[0] / move.box.height])
    corners = (corners * factor - start) * zoom
    if move.flip:
        corners[..., 0] = move.size[1] - corners[:, ::-1, 0]
    if move.matrix is not None:
        (left, top), (right, bottom) = corners[:, 0].T, corners[:, 1].T
        x, y = np.stack([left, right, right, left], 1), np.stack([top, top, bottom, bottom], 1)
        # The matrix maps centres of pixels, which lie half a pixel from their edges.
        points = np.stack([x - 0.5, y - 0.5, np.ones_like(x)], -1) @ move.matrix.T + 0.5
        corners = np.stack([points.min(1), points.max(1)], 1)
    return corners.reshape(-1, 4).astype(np.float32)


def clipped(boxes: Float[np.ndarray, "n 4"], size: tuple[int, int]) -> Float[np.ndarray, "n 4"]:
    """Cut boxes at the edges of an image of (h, w); one that lies outside has no area then."""
    most = np.array([size[1], size[0], size[1], size[0]], boxes.dtype)
    return np.clip(boxes, 0, most)


def areas(boxes: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, " n"]:
    """Return width times height of each box."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return sides[:, 0] * sides[:, 1]


def moved(target: PixelTarget, move: Geometry, min_visible: float = 0.0) -> PixelTarget:
    """Return what is known of the image that `move` makes of a target's image.

    A segment is dropped where no pixel of it is left (of a box, no pixel's centre), or less than
    `min_visible` of its area: that of its mask, brought to the new scale, or of its box.
    """
    if target.label_map is not None:
        found = moved_pixels(target.label_map, move, IGNORED)
        return PixelTarget(size=move.size, label_map=found)
    if target.depth is not None:
        return PixelTarget(size=move.size, depth=moved_pixels(target.depth, move, 0))
    boxes = masks = None
    shares = np.ones(len(_classes(target)))
    if target.boxes is not None:
        whole = moved_boxes(target.boxes, target.size, move)
        boxes = clipped(whole, move.size)
        shares = areas(boxes) / np.maximum(areas(whole), 1e-9)
        shares *= rectangles(boxes, move.size).any((1, 2)) if target.masks is None else 1
    if target.masks is not None:
        masks = moved_pixels(target.masks, move, 0)
        least = _area_factor(target.size, move) * target.masks.sum((1, 2))
        shares = masks.sum((1, 2)) / np.maximum(least, 1e-9)
    keep = (shares > 0) & (shares >= min_visible)
    return PixelTarget(
        size=move.size,
        boxes=None if boxes is None else boxes[keep],
        masks=None if masks is None else masks[keep],
        classes=_classes(target)[keep],
        crowd=None if target.crowd is None else target.crowd[keep],
    )


def _classes(target: PixelTarget) -> Int32[np.ndarray, " n"]:
    return np.zeros(0, np.int32) if target.classes is None else target.classes


def _area_factor(full: tuple[int, int], move: Geometry) -> float:
    """Return the output pixels that a stored pixel takes, as far as it is shown."""
    factor = 1.0
    for axis in (0, 1):
        factor *= move.scaled[axis] / full[axis] * move.size[axis] / move.box[2 + axis]
    return factor if move.matrix is None else factor * abs(np.linalg.det(move.matrix[:, :2]))


def rectangles(boxes: Float[np.ndarray, "n 4"], size: tuple[int, int]) -> Bool[np.ndarray, "n h w"]:
    """Return masks of the pixels whose centres lie in each box, in an image of (h, w)."""
    left, top, right, bottom = (boxes[:, i, None] for i in range(4))
    y, x = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    rows, columns = (top <= y) & (y < bottom), (left <= x) & (x < right)
    return rows[:, :, None] & columns[:, None, :]


def uncrowded(target: PixelTarget) -> PixelTarget:
    """Leave out the segments that stand for many of their class: no query can be one of them."""
    if target.crowd is None or not target.crowd.any():
        return target
    keep = ~target.crowd
    return dataclasses.replace(
        target,
        boxes=None if target.boxes is None else target.boxes[keep],
        masks=None if target.masks is None else target.masks[keep],
        classes=None if target.classes is None else target.classes[keep],
        crowd=target.crowd[keep],
    )


def is_blank(target: PixelTarget) -> bool:
    """Return whether nothing is known of any pixel: no segment, no class, no depth."""
    if target.label_map is not None:
        return not (target.label_map != IGNORED).any()
    if target.depth is not None:
        return not target.depth.any()
    return not len(_classes(target))


def masks_of(target: PixelTarget) -> tuple[Bool[np.ndarray, "n h w"], Int32[np.ndarray, " n"]]:
    """Return the masks of a target's segments and their classes.

    Boxes without masks are filled. In a map of classes, each class that is there is a segment.
    """
    if target.label_map is not None:
        classes = np.unique(target.label_map)
        classes = classes[classes != IGNORED]
        return target.label_map == classes[:, None, None], classes.astype(np.int32)
    if target.masks is not None:
        return target.masks, _classes(target)
    boxes = np.zeros((0, 4), np.float32) if target.boxes is None else target.boxes
    return rectangles(boxes, target.size), _classes(target)


def packed(
    target: PixelTarget, most: int
) -> tuple[UInt8[np.ndarray, "T H bytes"], Int32[np.ndarray, " T"], int]:
    """Return bits and classes of `most` segments, -1 for none, and how many more there are.

    The smallest are left out, and the others keep their order.
    """
    masks, classes = masks_of(target)
    left_out = max(len(masks) - most, 0)
    if left_out:
        largest = np.argsort(-masks.sum((1, 2)), kind="stable")[:most]
        chosen = np.sort(largest)
        masks, classes = masks[chosen], classes[chosen]
    height, width = target.size
    bits = np.zeros((most, height, -(-width // 8)), np.uint8)
    bits[: len(masks)] = np.packbits(masks, axis=-1)
    numbers = np.full(most, -1, np.int32)
    numbers[: len(classes)] = classes
    return bits, numbers, left_out


def painted(target: PixelTarget) -> Int16[np.ndarray, "h w"]:
    """Return the class of each pixel; of segments that overlap, the smaller lies above.

    Raises ValueError: boxes, which do not say what of their pixels is of their class.
    """
    if target.label_map is not None:
        return target.label_map
    if target.masks is None and target.boxes is not None:
        raise ValueError("has boxes and no masks, from which pixels get no class")
    found = np.full(target.size, IGNORED, np.int16)
    masks, classes = masks_of(target)
    for i in np.argsort(-masks.sum((1, 2)), kind="stable"):
        found[masks[i]] = classes[i]
    return found
