# SPDX-License-Identifier: Apache-2.0
"""3-Augment (DeiT III, arXiv:2204.07118): the image grey, solarized or blurred.

The colour jitter that follows it there is `TransformConfig.color_jitter`.
"""

import numpy as np
from PIL import ImageFilter, ImageOps

from vit_jax.data.augment.pillow import from_pillow, to_pillow
from vit_jax.data.ops import Image, Operation

FORM = "3-augment"


class ThreeAugment:
    """Apply one of the three, each as likely."""

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        return _OPERATIONS[int(rng.integers(len(_OPERATIONS)))](image, rng)

    def parts(self) -> dict[str, Operation]:
        return {operation.__name__: operation for operation in _OPERATIONS}


def grayscale(image: Image, rng: np.random.Generator) -> Image:
    """Give every channel the luma."""
    picture = to_pillow(image)
    return from_pillow(picture.convert("L").convert(picture.mode))


def solarize(image: Image, rng: np.random.Generator) -> Image:
    """Invert the levels from 128 up."""
    return from_pillow(ImageOps.solarize(to_pillow(image), 128))


def blur(image: Image, rng: np.random.Generator) -> Image:
    """Blur with a Gaussian of standard deviation uniform in 0.1..2 pixels, as Pillow does."""
    smooth = ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0))
    return from_pillow(to_pillow(image).filter(smooth))


_OPERATIONS = (grayscale, solarize, blur)


def read(text: str, fill: tuple[int, ...]) -> ThreeAugment | None:
    """Read "3-augment"; None is any other text. Nothing comes in from outside: no `fill`."""
    return ThreeAugment() if text == FORM else None
