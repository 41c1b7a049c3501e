# SPDX-License-Identifier: Apache-2.0
"""Drawn shapes on textures as files, with the class of every pixel: what dense probes read."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

NAMES = ("texture", "circle", "square", "triangle")
_COLOURS = ((190, 70, 60), (60, 170, 80), (70, 90, 200))  # varied for each shape
_SIZES = ((48, 48), (40, 56), (60, 45))  # (height, width), in turn


def draw(rng: np.random.Generator, size: tuple[int, int]) -> tuple[Image.Image, Image.Image]:
    """Draw one shape; returns the image and its mask, which ignores the shape's outline."""
    height, width = size
    coarse = rng.integers(90, 170, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    texture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    mask = Image.new("L", (width, height))
    shape = int(rng.integers(1, len(NAMES)))
    radius = int(rng.integers(10, 17))
    x, y = (int(rng.integers(radius, side - radius)) for side in (width, height))
    box = (x - radius, y - radius, x + radius, y + radius)
    colour = tuple(int(c) for c in np.add(_COLOURS[shape - 1], rng.integers(-25, 26, 3)))
    for canvas, inside, outline in (
        (ImageDraw.Draw(texture), colour, (20, 20, 20)),
        (ImageDraw.Draw(mask), shape, 255),
    ):
        if shape == 1:
            canvas.ellipse(box, inside, outline)
        elif shape == 2:
            canvas.rectangle(box, inside, outline)
        else:
            corners = [(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)]
            canvas.polygon(corners, inside, outline)
    noise = rng.normal(0, 12, (height, width, 3))
    pixels = (np.asarray(texture) + noise).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels), mask


def write_shapes(root: Path, splits: dict[str, int]) -> Path:
    """Write root/{images,masks}/<split>/NN.{jpg,png} and classes.txt; returns root."""
    rng = np.random.default_rng(0)
    for split, count in splits.items():
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            image, mask = draw(rng, _SIZES[i % len(_SIZES)])
            if i % 2:  # as VOC's: colours to look at, whose numbers are the classes
                mask.putpalette(rng.integers(0, 256, 768).tolist())
            image.save(root / "images" / split / f"{i:02}.jpg", quality=95)
            mask.save(root / "masks" / split / f"{i:02}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    return root
