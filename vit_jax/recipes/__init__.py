# SPDX-License-Identifier: Apache-2.0
"""Published recipes as functions that return whole configs: one file a paper or codebase.

`from vit_jax.recipes import deit3` gives those in `imagenet` too.
"""

import copy
import dataclasses
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vit_jax import errors
from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig

if TYPE_CHECKING:  # what `__getattr__` imports, for editors and type checkers
    from vit_jax.recipes.imagenet import convnext, deit, deit3, google, regnet, swin, vit5

_IMAGENET = ("convnext", "deit", "deit3", "google", "regnet", "swin", "vit5")
# ImageNet's statistics, as the recipes born in PyTorch have them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# What happens to each image, by name: `--config.data.transform=inception`.
_INCEPTION = TransformConfig(crop=Crop.INCEPTION, flip=True)
_RESIZED = TransformConfig(crop=Crop.RANDOM_RESIZED, resize=Resize.BICUBIC, flip=True)

TRANSFORMS = {
    # Fixed: for evaluations, and for training without augmentation.
    "resize": TransformConfig(crop=Crop.RESIZE),
    "center": TransformConfig(),
    "center_timm": TransformConfig(crop_rule=CropRule.TORCH, resize=Resize.BICUBIC),
    # The ViT paper's, and AugReg's with RandAugment.
    "inception": _INCEPTION,
    "augreg": dataclasses.replace(_INCEPTION, auto_augment="randaug(2,10)"),
    # torchvision's, and with the policies of DeiT and DeiT III.
    "random_resized": _RESIZED,
    "deit": dataclasses.replace(_RESIZED, auto_augment="rand-m9-mstd0.5-inc1"),
    "deit3": dataclasses.replace(_RESIZED, auto_augment="3-augment", color_jitter=0.3),
    # The usual one of CIFAR: 4 mirrored pixels around, cut at random.
    "padded": TransformConfig(crop=Crop.RANDOM, crop_ratio=1.0, pad=4, flip=True),
}


def __getattr__(name: str) -> Any:
    if name not in _IMAGENET:
        raise AttributeError(f"vit_jax.recipes has no {name!r}")
    return importlib.import_module(f"{__name__}.imagenet.{name}")


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


def transform(name: str, field: str = "transform") -> TransformConfig:
    """Return a transform by name; `field` is what is set to it, for the message.

    Raises UserError: there is none of that name.
    """
    if name not in TRANSFORMS:
        raise errors.unknown(field, name, TRANSFORMS)
    return copy.copy(TRANSFORMS[name])
