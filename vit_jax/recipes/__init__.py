# SPDX-License-Identifier: Apache-2.0
"""Published recipes as functions that return whole configs: one file a paper or codebase."""

from collections.abc import Iterable

from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig

# ImageNet's statistics, as the recipes born in PyTorch have them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def choose(kind: str, name: str, choices: Iterable[str]) -> str:
    """Return a config's argument, `--config=FILE:name`; raises UserError: not in `choices`."""
    valid = list(choices)
    if name not in valid:
        raise UserError(f"unknown {kind} {name!r}; valid: {', '.join(valid)}")
    return name


def val(
    every: str, *, crop: Crop = Crop.CENTER, crop_ratio: float = 0.875, resize: Resize
) -> dict[str, EvalConfig]:
    """Evaluate on validation as torchvision does: by default the centre 224 of a side of 256."""
    plain = TransformConfig(
        crop=crop, crop_ratio=crop_ratio, crop_rule=CropRule.TORCH, resize=resize
    )
    return {"val": ClassifyEval(split="validation", every=every, transform=plain, report=True)}
