# SPDX-License-Identifier: Apache-2.0
"""Targets beside torchvision's v2 transforms on the same draws, on images of odd sizes.

`python -m tests.parity.test_targets` writes the cases of tests/golden/targets.npz, which
tests/unit/data/images/test_target_ops.py reads where torchvision is not installed.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.moves import CASES, GOLDEN, SIZES, Case, ours, target
from tests.parity.torch_models import torch
from vit_jax.data.config import ZoomSide
from vit_jax.data.images import ops


def torchvisions(case: Case) -> dict[str, np.ndarray]:
    """Return the label map, the masks and the boxes that torchvision makes of a case's."""
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    given, move = target(case), case.move
    masks = tv_tensors.Mask(torch.from_numpy(given.masks))
    corners: Any = torch.from_numpy(given.boxes)
    kind: Any = {"format": "XYXY", "canvas_size": given.size}
    boxes = tv_tensors.BoundingBoxes(corners, **kind)
    found: dict[str, Any] = {"masks": masks, "boxes": boxes}
    for key, each in found.items():
        each = functional.resize(each, list(move.scaled), antialias=True)
        if move.mirrored and key == "masks":
            each = functional.pad(each, [move.mirrored] * 4, padding_mode="reflect")
        top, left, height, width = move.box
        if move.mirrored and key == "boxes":  # torchvision refuses to mirror boxes
            top, left = top - move.mirrored, left - move.mirrored
        below = max(0, top + height - each.shape[-2]), max(0, left + width - each.shape[-1])
        if key == "masks" and any(below):
            each = functional.pad(each, [0, 0, below[1], below[0]])
        each = functional.crop(each, top, left, height, width)
        each = functional.resize(each, list(move.size), antialias=True)
        found[key] = functional.horizontal_flip(each) if move.flip else each
    return {key: np.asarray(each) for key, each in found.items()}


def test_masks_and_boxes_move_as_torchvisions() -> None:
    for number, case in enumerate(CASES):
        expected, found = torchvisions(case), ours(case)
        np.testing.assert_array_equal(found["masks"], expected["masks"], err_msg=f"{number}")
        np.testing.assert_allclose(
            found["boxes"], expected["boxes"], atol=2e-3, err_msg=f"{number}"
        )


def test_scale_jitter_has_torchvisions_sizes() -> None:
    from torchvision.transforms import v2

    jitter = v2.ScaleJitter((48, 48), (0.1, 2.0))
    torch.manual_seed(0)
    for size in SIZES * 50:
        state = torch.get_rng_state()
        expected = jitter.make_params([torch.zeros(3, *size)])["size"]
        torch.set_rng_state(state)
        zoom = float(0.1 + torch.rand(1) * 1.9)
        assert ops.zoomed(size, (48, 48), zoom, ZoomSide.LONG) == tuple(expected)


def write() -> None:
    arrays = {}
    for number, case in enumerate(CASES):
        found = torchvisions(case)
        arrays[f"masks{number}"] = np.packbits(found["masks"], axis=-1)
        arrays[f"boxes{number}"] = found["boxes"]
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    write()
    assert Path(GOLDEN).stat().st_size < 200_000
