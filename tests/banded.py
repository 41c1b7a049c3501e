# SPDX-License-Identifier: Apache-2.0
"""A small dataset of images of twelve bands of 16 bits, whose last bands tell the classes."""

from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 12


def write_image(file: Path, image: np.ndarray) -> None:
    """Write the bands of an image [H, W, C] as a TIFF of a page each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = (Image.fromarray(band) for band in np.moveaxis(image, 2, 0))
    first.save(file, save_all=True, append_images=rest)


def write_folder(folder: Path, train: int = 8, val: int = 3) -> Path:
    """Write so many images of each of two classes to two splits; return the folder."""
    rng = np.random.default_rng(0)
    for split, each in (("train", train), ("val", val)):
        for k, name in enumerate(("field", "sea")):
            for i in range(each):
                image = rng.integers(0, 2000, (20, 18, COUNT))
                image[..., 9:] += 20_000 * k
                write_image(folder / f"{split}/{name}/{i}.tif", image.astype(np.uint16))
    return folder
