# SPDX-License-Identifier: Apache-2.0
"""What happens to each image, by name: `--config.data.transform=inception`."""

import copy
import dataclasses

from vit_jax import errors
from vit_jax.data import Crop, CropRule, Resize, TransformConfig

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


def transform(name: str, field: str = "transform") -> TransformConfig:
    """Return a transform by name; `field` is what is set to it, for the message.

    Raises UserError: there is none of that name.
    """
    if name not in TRANSFORMS:
        raise errors.unknown(field, name, TRANSFORMS)
    return copy.copy(TRANSFORMS[name])
