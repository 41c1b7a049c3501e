# SPDX-License-Identifier: Apache-2.0
"""How images are resized: by which interpolation, to which size, with whose rounding."""

import enum
import math


class CropRule(enum.StrEnum):
    """Whose rounding CENTER has; on most images the two are up to a pixel apart.

    TF is big_vision's resize_small and central_crop: the long side is rounded and the offset
    floored. TORCH is torchvision's Resize and CenterCrop, and so timm's: the long side is truncated
    and the offset rounded, half to even.
    """

    TF = "tf"
    TORCH = "torch"


class Resize(enum.StrEnum):
    """How pixels are interpolated; each is the library whose function the recipe was born with.

    BILINEAR is OpenCV's INTER_LINEAR: four taps, no antialiasing, half-pixel centres, as
    tf.image.resize does by default. BILINEAR_ANTIALIAS is Pillow's: a triangle as wide as an output
    pixel's footprint, torchvision's default. BICUBIC is Pillow's: antialiased, a = -0.5, as
    torchvision and timm do. BICUBIC_NO_ANTIALIAS is OpenCV's INTER_CUBIC: 16 taps, a = -0.75, as
    torch's interpolate does by default. AREA is OpenCV's INTER_AREA: the mean over each output
    pixel's footprint, as tf.image.resize(method="area") does (big_vision's evaluation).
    """

    BILINEAR = "bilinear"
    BILINEAR_ANTIALIAS = "bilinear_antialias"
    BICUBIC = "bicubic"
    BICUBIC_NO_ANTIALIAS = "bicubic_no_antialias"
    AREA = "area"


def cover_size(size: tuple[int, int], ratio: float) -> tuple[int, int]:
    """Return the (height, width) of which `size` is the share `ratio`, rounded down.

    As timm and the authors of DeiT and Swin have it: 248 pixels for 224 at 0.9.
    """
    rows, columns = (math.floor(side / ratio + 1e-6) for side in size)  # 128 / 0.8 is 160
    return rows, columns
