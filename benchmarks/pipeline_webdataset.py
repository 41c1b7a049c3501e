# SPDX-License-Identifier: Apache-2.0
"""WebDataset's tar shards through PyTorch's loader, as the other side of a comparison.

Given every advantage: a shuffle of few examples, a process a core, and, in one setting, the decoder
and the resize of this project.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn

_SIDE = 224


def make(
    urls: Sequence[str], batch_size: int, batches: int, fast: bool
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream photographs as pipeline_ours.make does.

    Args:
        urls: tar shards, paths or addresses.
        batch_size: images a batch.
        batches: in a turn.
        fast: decode and resize with simplejpeg and OpenCV instead of Pillow.
    """
    import webdataset  # pyright: ignore[reportMissingImports]

    read = _fast if fast else _pillow
    dataset = webdataset.WebDataset(list(urls), shardshuffle=len(urls), empty_check=False)
    dataset = dataset.repeat().shuffle(200).to_tuple("jpg", "cls").map_tuple(read, int)
    loader = webdataset.WebLoader(
        dataset.batched(batch_size), batch_size=None, num_workers=num_cores(), prefetch_factor=3
    )
    stream = iter(loader)
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)


def _box(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw (top, left, rows, columns) as torchvision's RandomResizedCrop does, most of the time."""
    area = np.random.uniform(0.05, 1.0) * height * width
    aspect = math.exp(np.random.uniform(math.log(0.75), math.log(1.33)))
    rows = min(height, max(1, round(math.sqrt(area / aspect))))
    columns = min(width, max(1, round(math.sqrt(area * aspect))))
    top = np.random.randint(height - rows + 1)
    return top, np.random.randint(width - columns + 1), rows, columns


def _pillow(data: bytes) -> np.ndarray:
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    top, left, rows, columns = _box(image.height, image.width)
    box = (left, top, left + columns, top + rows)
    image = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box=box)
    return _flipped(np.asarray(image))


def _fast(data: bytes) -> np.ndarray:
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    image = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
    top, left, rows, columns = _box(*image.shape[:2])
    cut = image[top : top + rows, left : left + columns]
    return _flipped(cv2.resize(cut, (_SIDE, _SIDE), interpolation=cv2.INTER_LINEAR))


def _flipped(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image[:, ::-1]) if np.random.rand() < 0.5 else image
