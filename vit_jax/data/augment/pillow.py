# SPDX-License-Identifier: Apache-2.0
"""Images to Pillow and back: the PyTorch-born policies are defined by what Pillow computes."""

import numpy as np
from PIL import Image as PillowImage

from vit_jax.data.augment.policy import Image

Picture = PillowImage.Image


def to_pillow(image: Image) -> Picture:
    """Return a picture of mode L or RGB."""
    return PillowImage.fromarray(image if image.shape[2] == 3 else image[..., 0])


def from_pillow(picture: Picture) -> Image:
    """Return the picture's levels, [H, W, 1 or 3]."""
    return np.asarray(picture).reshape(picture.height, picture.width, -1)
