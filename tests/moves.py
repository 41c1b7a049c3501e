# SPDX-License-Identifier: Apache-2.0
"""Moves of images of odd sizes, and a target to be moved; torchvision's results are a golden."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.data import Crop, TransformConfig
from vit_jax.data.config import ZoomSide
from vit_jax.data.images import ops, target_ops
from vit_jax.data.stream.transform import Transform, evaluation_place
from vit_jax.data.targets import PixelTarget

GOLDEN = Path(__file__).parent / "golden" / "targets.npz"
SIZES = ((37, 53), (61, 29), (24, 24), (19, 70))  # (height, width) of images
OUTPUT = (33, 21)
CONFIGS = (
    TransformConfig(crop=Crop.RESIZE),
    TransformConfig(crop=Crop.CENTER, flip=True),
    TransformConfig(crop=Crop.SQUASH_CENTER, crop_ratio=0.8),
    TransformConfig(crop=Crop.RANDOM, pad=3, flip=True),
    TransformConfig(crop=Crop.SQUASH_RANDOM, crop_ratio=0.7),
    TransformConfig(crop=Crop.INCEPTION, flip=True),
    TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True),
    TransformConfig(crop=Crop.SCALE_JITTER, flip=True),
    TransformConfig(crop=Crop.SCALE_JITTER, zoom=(0.1, 2.0), zoom_side=ZoomSide.LONG),
)


class Case(NamedTuple):
    """An image's size and a move that was drawn for it."""

    size: tuple[int, int]
    move: ops.Geometry


def _cases() -> list[Case]:
    found = []
    for number, cfg in enumerate(CONFIGS):
        transform = Transform(cfg=cfg, image_size=OUTPUT, channels=3, exact=False)
        for size in SIZES:
            image = np.zeros((*size, 3), np.uint8)
            rng = np.random.default_rng((number, *size))
            _, move = transform.drawn(transform.view(image), rng)
            if number < 3:
                move = evaluation_place(size, cfg, OUTPUT)._replace(flip=move.flip)
            found.append(Case(size, move))
    return found


def target(case: Case) -> PixelTarget:
    """Make blobs of any shape, and boxes some of which will be cut away."""
    height, width = case.size
    rng = np.random.default_rng(case.size)
    corners = np.sort(rng.uniform(0, 1, (5, 2, 2)), axis=1)
    boxes = (corners * (width, height)).reshape(5, 4).astype(np.float32)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / a) * np.cos(y / b) > 0.2 for a, b in rng.uniform(1, 8, (5, 2))]
    return PixelTarget(
        size=case.size, boxes=boxes, masks=np.array(waves), classes=np.arange(5, dtype=np.int32)
    )


def ours(case: Case) -> dict[str, np.ndarray]:
    """Move a case's masks and boxes, and drop none."""
    given = target(case)
    assert given.boxes is not None
    assert given.masks is not None
    boxes = target_ops.moved_boxes(given.boxes, given.size, case.move)
    return {
        "masks": target_ops.moved_pixels(given.masks, case.move, 0),
        "boxes": target_ops.clipped(boxes, case.move.size),
    }


CASES = _cases()
