# SPDX-License-Identifier: Apache-2.0
"""The evaluation's centre crop beside torchvision's and timm's own, on images of 500 sizes."""

import numpy as np
import pytest
from PIL import Image

from tests.parity.torch_models import timm
from vit_jax.data import Crop, CropRule, Resize, TransformConfig, evaluation_view

# Of timm's pretrained_cfg; 1.0 and 0.875 are by far the commonest.
RATIOS = (1.0, 0.875, 0.9, 0.95, 0.96, 0.965, 0.94, 224 / 236)
INTERPOLATIONS = {Resize.BICUBIC: "bicubic", Resize.BILINEAR_ANTIALIAS: "bilinear"}
WHOLE = np.random.default_rng(0).integers(0, 256, (260, 260, 3), dtype=np.uint8)


def draws() -> list[tuple[np.ndarray, int, float, Resize]]:
    """Draw images of 500 sizes, each with the model's side, a ratio and an interpolation."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(500):
        height, width = rng.integers(20, 260, 2)
        resize = list(INTERPOLATIONS)[rng.integers(2)]
        image = np.ascontiguousarray(WHOLE[:height, :width])
        found.append((image, int(rng.integers(16, 97)), float(rng.choice(RATIOS)), resize))
    return found


def ours(image: np.ndarray, size: tuple[int, int], ratio: float, resize: Resize) -> np.ndarray:
    cfg = TransformConfig(
        crop=Crop.CENTER, crop_ratio=ratio, crop_rule=CropRule.TORCH, resize=resize
    )
    return evaluation_view(image, cfg, size)


def test_torchvisions_resize_and_center_crop() -> None:
    from torchvision.transforms import CenterCrop, InterpolationMode
    from torchvision.transforms import Resize as Short

    for image, side, ratio, resize in draws():
        short = Short(int(side / ratio), InterpolationMode(INTERPOLATIONS[resize]))
        expected = np.asarray(CenterCrop(side)(short(Image.fromarray(image))))
        found = ours(image, (side, side), ratio, resize)
        np.testing.assert_array_equal(found, expected, err_msg=f"{image.shape} {side} {ratio}")


@pytest.mark.parametrize("aspect", [1.0, 1.5])
def test_timms_evaluation(aspect: float) -> None:
    for image, side, ratio, resize in draws():
        size = (side, int(side * aspect))
        transform = timm.data.create_transform(
            input_size=(3, *size),
            interpolation=INTERPOLATIONS[resize],
            crop_pct=ratio,
            normalize=False,
        )
        expected = transform(Image.fromarray(image)).numpy().transpose(1, 2, 0)
        found = ours(image, size, ratio, resize)
        np.testing.assert_array_equal(found, expected, err_msg=f"{image.shape} {size} {ratio}")
