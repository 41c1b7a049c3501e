# SPDX-License-Identifier: Apache-2.0
"""Colour jitter: torchvision's ColorJitter of brightness, contrast and saturation."""

import numpy as np
from PIL import ImageEnhance

from vit_jax.data.augment.pillow import from_pillow, to_pillow
from vit_jax.data.augment.policy import Image

_ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def jitter(image: Image, strength: float, rng: np.random.Generator) -> Image:
    """Change brightness, contrast and saturation in random order.

    Each by a factor uniform in [max(0, 1 - strength), 1 + strength], rounded as Pillow rounds.
    Saturation leaves a grey image alone.
    """
    picture = to_pillow(image)
    for which in rng.permutation(len(_ENHANCERS)):
        factor = rng.uniform(max(0.0, 1 - strength), 1 + strength)
        picture = _ENHANCERS[which](picture).enhance(factor)
    return from_pillow(picture)
