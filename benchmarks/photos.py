# SPDX-License-Identifier: Apache-2.0
"""JPEG files of ImageNet's size, cut from scikit-learn's two sample photographs."""

from pathlib import Path

import cv2
import numpy as np


def write_photos(root: Path, count: int, quality: int = 90) -> int:
    """Write `count` JPEGs of about 500x375 below root/train/{a,b}; returns their mean bytes."""
    from sklearn.datasets import load_sample_images

    photos = load_sample_images().images
    rng = np.random.default_rng(0)
    total = 0
    for i in range(count):
        photo = photos[i % 2]
        height, width = photo.shape[:2]
        side = rng.uniform(0.6, 1.0)
        h, w = int(height * side), int(width * side)
        y, x = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        size = (int(rng.integers(450, 551)), int(rng.integers(340, 411)))
        if rng.random() < 0.25:  # portrait
            size = size[::-1]
        cut = cv2.resize(photo[y : y + h, x : x + w], size, interpolation=cv2.INTER_AREA)
        bgr = cv2.cvtColor(cut, cv2.COLOR_RGB2BGR)
        folder = root / "train" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{i}.jpg"
        cv2.imwrite(str(path), bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
        total += path.stat().st_size
    return total // max(count, 1)
