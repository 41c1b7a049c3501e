# SPDX-License-Identifier: Apache-2.0
"""What a model's scores and masks say of an image at its own size.

Classes by windows that are laid over the resized image, as DINOv2 and v3 (by a stride) and EoMT
(as few as cover it) measure them; segments and instances of the whole image, padded to the model's
size (EoMT, arXiv:2503.19108, its code's training/lightning_module.py and
mask_classification_*.py; transformers' image_processing_eomt.py).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Num

from vit_jax.data.config import Resize
from vit_jax.data.images import ops
from vit_jax.evals.dense.panoptic import SegmentMap

Size = tuple[int, int]  # (height, width)
_CHANNELS = 64  # OpenCV resizes up to 512 at once; fewer stay in the cache
SCORE, OVERLAP = 0.8, 0.8  # of panoptic segments, the authors' thresholds
TOP = 100  # instances of an image


class Windows(NamedTuple):
    """Cuts of an image that was resized to `size`.

    Attributes:
        pixels: of the model's size each.
        corners: (top, left) of each.
        size: of the resized image; less than that of a window where it was padded.
    """

    pixels: Num[np.ndarray, "n h w C"]
    corners: list[tuple[int, int]]
    size: Size


def covering(
    image: Num[np.ndarray, "H W C"], window: Size, method: Resize, stride: int = 0
) -> Windows:
    """Resize an image until it just covers a window, and lay windows over all of it.

    `stride` is the distance from one window to the next, in pixels, the last one at the edge; 0
    spreads evenly as few as cover the image.
    """
    scale = max(wanted / side for wanted, side in zip(window, image.shape[:2], strict=True))
    rows, columns = (round(side * scale) for side in image.shape[:2])
    resized = ops.resize(image, (rows, columns), method)
    each = (
        places(side, wanted, stride) for side, wanted in zip((rows, columns), window, strict=True)
    )
    tops, lefts = each
    corners = [(top, left) for top in tops for left in lefts]
    cuts = [resized[top : top + window[0], left : left + window[1]] for top, left in corners]
    return Windows(np.stack(cuts), corners, (rows, columns))


def places(side: int, window: int, stride: int = 0) -> list[int]:
    """Return where windows begin that cover a side; by `stride`, or 0 for evenly spread ones."""
    if stride:
        count = max(side - window + stride - 1, 0) // stride + 1
        return [max(min(i * stride + window, side) - window, 0) for i in range(count)]
    count = math.ceil(side / window)
    overlap = (count * window - side) / (count - 1) if count > 1 else 0
    return [int(i * (window - overlap)) for i in range(count)]


def padded(image: Num[np.ndarray, "H W C"], window: Size, method: Resize) -> Windows:
    """Resize an image until it just fits into a window, filled with zeros below and right."""
    scale = min(wanted / side for wanted, side in zip(window, image.shape[:2], strict=True))
    rows, columns = (max(round(side * scale), 1) for side in image.shape[:2])
    found = np.zeros((1, *window, image.shape[2]), image.dtype)
    found[0, :rows, :columns] = ops.resize(image, (rows, columns), method)
    return Windows(found, [(0, 0)], (rows, columns))


def enlarged(maps: Float[np.ndarray, "n h w"], size: Size) -> Float32[np.ndarray, "n H W"]:
    """Resize maps bilinearly between centres of pixels, not antialiased: PyTorch's interpolate."""
    if maps.shape[1:] == size:
        return np.asarray(maps, np.float32)
    found = np.empty((len(maps), *size), np.float32)
    for at in range(0, len(maps), _CHANNELS):
        last = np.moveaxis(maps[at : at + _CHANNELS], 0, -1).astype(np.float32)
        new = cv2.resize(np.ascontiguousarray(last), size[::-1], interpolation=cv2.INTER_LINEAR)
        found[at : at + _CHANNELS] = np.moveaxis(new.reshape(*size, -1), -1, 0)
    return found


def class_map(
    scores: Sequence[Float[np.ndarray, "K h w"]], windows: Windows, size: Size
) -> Int[np.ndarray, "H W"]:
    """Return the likeliest class of each pixel of an image of `size`.

    Scores of windows are brought to the windows' size and averaged where these overlap.
    """
    height, width = windows.pixels.shape[1:3]
    total = np.zeros((len(scores[0]), *windows.size), np.float32)
    count = np.zeros(windows.size, np.float32)
    for own, (top, left) in zip(scores, windows.corners, strict=True):
        place = slice(top, top + height), slice(left, left + width)
        total[:, *place] += enlarged(own, (height, width))
        count[place] += 1
    total /= count
    return enlarged(total, size).argmax(axis=0).astype(np.int16)


def _own_size(
    logits: Float[np.ndarray, "Q h w"], windows: Windows, size: Size
) -> Iterator[tuple[slice, Float32[np.ndarray, "q H W"]]]:
    """Yield some queries' mask logits at the image's own size at a time, without the padding."""
    rows, columns = windows.size
    for at in range(0, len(logits), _CHANNELS):
        part = slice(at, at + _CHANNELS)
        whole = enlarged(logits[part], windows.pixels.shape[1:3])
        yield part, enlarged(whole[:, :rows, :columns], size)


class Instances(NamedTuple):
    """Objects found in an image, the likeliest first.

    Attributes:
        scores: the probability of the class times the mean of the mask's own.
        classes: of each.
        masks: of the image's size.
        boxes: (left, top, right, bottom) around the masks, in pixels.
    """

    scores: Float32[np.ndarray, " n"]
    classes: Int[np.ndarray, " n"]
    masks: Bool[np.ndarray, "n H W"]
    boxes: Float32[np.ndarray, "n 4"]


def instances(
    class_logits: Float[np.ndarray, "Q C"],
    mask_logits: Float[np.ndarray, "Q h w"],
    windows: Windows,
    size: Size,
    top: int = TOP,
) -> Instances:
    """Return the `top` likeliest pairs of a query and a class, without those of no pixel.

    The image was brought to size by `padded`. A mask is where its logits are above 0.
    """
    likely = _softmax(class_logits)[:, :-1]
    chosen = np.argsort(-likely.ravel(), kind="stable")[:top]
    query, classes = np.divmod(chosen, likely.shape[1])
    used, own = np.unique(query, return_inverse=True)
    masks = np.zeros((len(used), *size), bool)
    sure = np.zeros(len(used))
    for part, logits in _own_size(mask_logits[used], windows, size):
        inside = masks[part] = logits > 0
        weight = np.where(inside, _sigmoid(logits), 0).sum(axis=(1, 2), dtype=np.float64)
        sure[part] = weight / (inside.sum(axis=(1, 2)) + 1e-6)
    scores = (likely.ravel()[chosen] * sure[own]).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > 0]
    masks = masks[own[order]]
    boxes = np.array([box_of(mask) for mask in masks], np.float32).reshape(-1, 4)
    return Instances(scores[order], classes[order].astype(np.int32), masks, boxes)


def box_of(mask: Bool[np.ndarray, "H W"]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) around a mask, in pixels; zeros of an empty one."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


class Divided(NamedTuple):
    """An image divided into segments, with the score of each."""

    found: SegmentMap
    scores: Float32[np.ndarray, " n"]


def panoptic(
    class_logits: Float[np.ndarray, "Q C"],
    mask_logits: Float[np.ndarray, "Q h w"],
    windows: Windows,
    size: Size,
    things: Sequence[bool] = (),
    score: float = SCORE,
    overlap: float = OVERLAP,
) -> Divided:
    """Divide an image into things and stuff, by queries that are sure of a class.

    Queries whose likeliest class is one and more probable than `score` share the pixels: each goes
    to the query whose mask times probability is greatest there, if its mask is at least 1/2. A
    query that gets no more than the share `overlap` of its own mask is dropped. The parts of a
    class of stuff are one segment.

    Args:
        class_logits, mask_logits: what the queries say of the window.
        windows: the image as it was brought to size, by `padded`.
        size: of the image.
        things: of each class whether it is a thing; () is all.
        score, overlap: the thresholds.
    """
    probability = _softmax(class_logits)
    classes, likely = probability.argmax(axis=1), probability.max(axis=1)
    kept = np.flatnonzero((classes < probability.shape[1] - 1) & (likely > score))
    masks = np.empty((len(kept), *size), np.float32)
    for part, logits in _own_size(mask_logits[kept], windows, size):
        masks[part] = _sigmoid(logits)
    ids = np.zeros(size, np.int32)
    owners: list[tuple[int, float]] = []  # class and score of each segment
    stuff: dict[int, int] = {}
    winner = (likely[kept, None, None] * masks).argmax(axis=0) if len(kept) else ids
    for row, query in enumerate(kept.tolist()):
        own, won = masks[row] >= 0.5, winner == row
        final, area = own & won, int(own.sum())
        if not final.any() or won.sum() / area <= overlap:
            continue
        k = int(classes[query])
        number = stuff.get(k, len(owners) + 1)
        if number > len(owners):
            owners.append((k, float(likely[query])))
            if things and not things[k]:
                stuff[k] = number
        ids[final] = number
    found = np.array([k for k, _ in owners], np.int32)
    scores = np.array([value for _, value in owners], np.float32)
    return Divided(SegmentMap(ids, found, np.zeros(len(owners), bool)), scores)


def _softmax(logits: Float[np.ndarray, "Q C"]) -> Float32[np.ndarray, "Q C"]:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (0.5 * (np.tanh(0.5 * x) + 1)).astype(np.float32)
