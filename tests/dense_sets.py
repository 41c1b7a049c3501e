# SPDX-License-Identifier: Apache-2.0
"""Small sets of images with a class for each pixel, or with segments, for tests that train."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("sky", "sea", "sand")
SIZE = (20, 24)  # height, width
COUNTS = {"train": 10, "val": 4}


def _scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return an image of three bands, and the class of each pixel."""
    height, width = SIZE
    first, second = np.sort(rng.choice(np.arange(3, height - 3), 2, replace=False))
    classes = np.zeros(SIZE, np.uint8)
    classes[first:], classes[second:] = 1, 2
    colours = np.array([[90, 140, 220], [20, 60, 140], [220, 190, 120]])
    image = colours[classes] + rng.integers(-15, 15, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8), classes


def _images(root: Path, beside: str) -> Iterator[tuple[Path, np.ndarray]]:
    """Write the images; yields where each one's target is, but for a suffix, and its classes."""
    rng = np.random.default_rng(0)
    for split, count in COUNTS.items():
        for kind in ("images", beside):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            image, classes = _scene(rng)
            Image.fromarray(image).save(root / "images" / split / f"{i}.png")
            yield root / beside / split / str(i), classes


def write_masks(root: Path) -> str:
    """Write images and masks, with a pixel of no class in each; returns the name of the set."""
    for path, classes in _images(root, "masks"):
        classes[0, 0] = 255
        Image.fromarray(classes).save(f"{path}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    return f"masks:{root}"


def write_coco(root: Path) -> str:
    """Write images and their segments as COCO's JSON; returns the name of the set."""
    rng, (height, width) = np.random.default_rng(0), SIZE
    categories = [{"id": 3 * k + 1, "name": name} for k, name in enumerate(NAMES)]
    for split, count in COUNTS.items():
        (root / split).mkdir(parents=True)
        images, annotations = [], []
        for i in range(count):
            image, classes = _scene(rng)
            file = f"{i}.png"
            Image.fromarray(image).save(root / split / file)
            images.append({"id": i, "file_name": file, "width": width, "height": height})
            for k in range(len(NAMES)):
                rows = np.flatnonzero((classes == k).any(axis=1))
                top, low = int(rows[0]), int(rows[-1]) + 1
                outline = [0, top, width, top, width, low, 0, low]
                found = {"id": len(annotations) + 1, "image_id": i, "category_id": 3 * k + 1}
                found |= {"bbox": [0, top, width, low - top], "area": width * (low - top)}
                annotations.append({**found, "segmentation": [outline], "iscrowd": 0})
        tree = {"images": images, "annotations": annotations, "categories": categories}
        (root / f"{split}.json").write_text(json.dumps(tree))
    return f"coco:{root}"


def write_depth(root: Path) -> str:
    """Write images and depths in metres, the sky not known; returns the name of the set."""
    for path, classes in _images(root, "depth"):
        np.save(f"{path}.npy", classes.astype(np.float32))
    return f"depth:{root}"


# By what a run learns from.
WRITERS = {"pixels": write_masks, "segments": write_coco, "depth": write_depth}
