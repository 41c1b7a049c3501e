# SPDX-License-Identifier: Apache-2.0
"""Operations of Pillow by the names that AutoAugment (arXiv:1805.09501) gave them; colour jitter.

The PyTorch-born policies are defined by what Pillow computes, so Pillow computes it here.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageEnhance, ImageOps

from vit_jax.data.images.ops import Image

Picture = PillowImage.Image
Resampling = PillowImage.Resampling
_ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def to_pillow(image: Image) -> Picture:
    """Return a picture of mode L or RGB."""
    return PillowImage.fromarray(image if image.shape[2] == 3 else image[..., 0])


def from_pillow(picture: Picture) -> Image:
    """Return the picture's levels, [H, W, 1 or 3]."""
    return np.asarray(picture).reshape(picture.height, picture.width, -1)


def posterize(picture: Picture, bits: int) -> Picture:
    """Keep the highest bits of each level; Pillow's own does not take 0 of them, timm draws 0."""
    mask = 0xFF & ~(0xFF >> max(bits, 0))
    return _map_levels(picture, [level & mask for level in range(256)])


def solarize_add(picture: Picture, addition: int) -> Picture:
    """Add to the levels below 128."""
    table = [min(255, level + addition) if level < 128 else level for level in range(256)]
    return _map_levels(picture, table)


def _map_levels(picture: Picture, table: list[int]) -> Picture:
    return picture.point(table * len(picture.getbands()))


def operate(
    name: str, picture: Picture, argument: float | int, fill: tuple[int, ...], resample: Resampling
) -> Picture:
    """Apply one operation.

    Args:
        name: as in AutoAugment.
        picture: of mode L or RGB; on L, Color does nothing.
        argument: degrees of Rotate, counter-clockwise; pixels along x per pixel of y of ShearX,
            about the top left corner, and the other way round of ShearY; share of the side of
            TranslateX and TranslateY, towards the top left; bits kept of Posterize; lowest inverted
            level of Solarize; what SolarizeAdd adds; factor of Color, Contrast, Brightness and
            Sharpness, 1 for no change. The others take none.
        fill: level of what comes in from outside, one or one per channel.
        resample: how the first three read between pixels.
    """
    color = fill[0] if picture.mode == "L" else (fill * 3)[:3]

    def affine(*matrix: float | int) -> Picture:
        kind = PillowImage.Transform.AFFINE
        return picture.transform(picture.size, kind, matrix, resample, fillcolor=color)

    operations: dict[str, Callable[[], Picture]] = {
        "AutoContrast": lambda: ImageOps.autocontrast(picture),
        "Equalize": lambda: ImageOps.equalize(picture),
        "Invert": lambda: ImageOps.invert(picture),
        "Rotate": lambda: picture.rotate(argument, resample, fillcolor=color),
        "Posterize": lambda: posterize(picture, int(argument)),
        "Solarize": lambda: ImageOps.solarize(picture, int(argument)),
        "SolarizeAdd": lambda: solarize_add(picture, int(argument)),
        "Color": lambda: ImageEnhance.Color(picture).enhance(argument),
        "Contrast": lambda: ImageEnhance.Contrast(picture).enhance(argument),
        "Brightness": lambda: ImageEnhance.Brightness(picture).enhance(argument),
        "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(argument),
        "ShearX": lambda: affine(1, argument, 0, 0, 1, 0),
        "ShearY": lambda: affine(1, 0, 0, argument, 1, 0),
        "TranslateX": lambda: affine(1, 0, argument * picture.width, 0, 1, 0),
        "TranslateY": lambda: affine(1, 0, 0, 0, 1, argument * picture.height),
    }
    if name not in operations:
        raise ValueError(f"no operation {name!r}")
    return operations[name]()


def jitter(image: Image, strength: float, rng: np.random.Generator) -> Image:
    """Change brightness, contrast and saturation in random order, as torchvision's ColorJitter.

    Each by a factor uniform in [max(0, 1 - strength), 1 + strength], rounded as Pillow rounds.
    Saturation leaves a grey image alone.
    """
    picture = to_pillow(image)
    for which in rng.permutation(len(_ENHANCERS)):
        factor = rng.uniform(max(0.0, 1 - strength), 1 + strength)
        picture = _ENHANCERS[which](picture).enhance(factor)
    return from_pillow(picture)
