# SPDX-License-Identifier: Apache-2.0
"""What loaders of other projects do with one JPEG: decode it, cut a random box, resize, mirror.

Two decoders: Pillow, as most tutorials have it, and the fastest that pip installs, simplejpeg with
the fast inverse DCT and OpenCV's resize, which are this project's own.
"""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np

SIDE = 224


def pillow(data: bytes) -> np.ndarray:
    """Decode and vary an image by Pillow alone."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    top, left, rows, columns = box(image.height, image.width)
    cut = (left, top, left + columns, top + rows)
    found = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=cut))
    return np.ascontiguousarray(found[:, ::-1]) if np.random.rand() < 0.5 else found


def fast(data: Any, out: np.ndarray | None = None) -> np.ndarray:
    """Decode and vary an image by simplejpeg and OpenCV, into a row of a batch if one is given."""
    import simplejpeg

    image = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)
    return varied(image, np.empty((SIDE, SIDE, 3), np.uint8) if out is None else out)


def varied(image: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Cut a random box of some pixels, resize it and mirror one in two, into `out`."""
    import cv2

    cv2.setNumThreads(0)
    top, left, rows, columns = box(*image.shape[:2])
    cut = image[top : top + rows, left : left + columns]
    if np.random.rand() < 0.5:
        return cv2.flip(cv2.resize(cut, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), 1, out)
    return cv2.resize(cut, (SIDE, SIDE), out, interpolation=cv2.INTER_LINEAR)


DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "Pillow": pillow,
    "simplejpeg and OpenCV": fast,
}


def box(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw (top, left, rows, columns) as torchvision's RandomResizedCrop does, most of the time."""
    area = np.random.uniform(0.05, 1.0) * height * width
    aspect = math.exp(np.random.uniform(math.log(0.75), math.log(1.33)))
    rows = min(height, max(1, round(math.sqrt(area / aspect))))
    columns = min(width, max(1, round(math.sqrt(area * aspect))))
    top = np.random.randint(height - rows + 1)
    return top, np.random.randint(width - columns + 1), rows, columns
