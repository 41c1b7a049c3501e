# SPDX-License-Identifier: Apache-2.0
"""What the recipes born in PyTorch share: ImageNet's statistics, and torchvision's evaluation."""

from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.evals import ClassifyEval, EvalConfig

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def val(
    every: str, *, crop: Crop = Crop.CENTER, crop_ratio: float = 0.875, resize: Resize
) -> dict[str, EvalConfig]:
    """Evaluate on the validation set, by default on the centre 224 of a short side of 256."""
    plain = TransformConfig(
        crop=crop, crop_ratio=crop_ratio, crop_rule=CropRule.TORCH, resize=resize
    )
    return {"val": ClassifyEval(split="validation", every=every, transform=plain, report=True)}
