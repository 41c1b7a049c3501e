# SPDX-License-Identifier: Apache-2.0
"""A small folder of real photographs: cuts of scikit-learn's two sample images, as JPEG files."""

import hashlib
import io
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images


def tiny(text: str) -> bytes:
    """Return a PNG of four pixels, another one for another text."""
    pixels = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).digest()
    out = io.BytesIO()
    Image.frombytes("RGB", (2, 2), pixels).save(out, "PNG")
    return out.getvalue()


def write_images(root: Path, *names: str) -> str:
    """Write an image of its own at each of these paths below `root`; returns "folder:ROOT"."""
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tiny(name))
    return f"folder:{root}"


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
