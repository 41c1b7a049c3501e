# SPDX-License-Identifier: Apache-2.0
"""A small folder of real photographs: cuts of scikit-learn's two sample images, as JPEG files."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images


def write_folder(
    root: Path, splits: dict[str, int], classes: tuple[str, ...], side: int = 48
) -> None:
    """Write `splits[name]` images per class and split below root/<split>/<class>/."""
    rng = np.random.default_rng(0)
    photos = load_sample_images().images
    for split, count in splits.items():
        for k, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                photo = photos[k % len(photos)]
                y, x = (int(rng.integers(0, size - side)) for size in photo.shape[:2])
                Image.fromarray(photo[y : y + side, x : x + side]).save(folder / f"{i}.jpg")
