# SPDX-License-Identifier: Apache-2.0
"""3-Augment (DeiT III, arXiv:2204.07118): the image grey, solarized or blurred.

The colour jitter that follows it there is `TransformConfig.color_jitter`.
"""

from collections.abc import Callable

import numpy as np
from PIL import ImageFilter, ImageOps

from vit_jax.data.augment.pillow import Picture, from_pillow, to_pillow
from vit_jax.data.images.ops import Image, Operation

FORM = "3-augment"


class ThreeAugment:
    """Apply one of the three, each as likely."""

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        operations = tuple(self.parts().values())
        return operations[int(rng.integers(len(operations)))](image, rng)

    def parts(self) -> dict[str, Operation]:
        return {
            name: lambda image, rng, run=run: from_pillow(run(to_pillow(image), rng))
            for name, run in _OPERATIONS.items()
        }


_OPERATIONS: dict[str, Callable[[Picture, np.random.Generator], Picture]] = {
    "grayscale": lambda picture, rng: picture.convert("L").convert(picture.mode),
    "solarize": lambda picture, rng: ImageOps.solarize(picture, 128),
    # The Gaussian's standard deviation is in pixels.
    "blur": lambda picture, rng: picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0))),
}


def read(text: str, fill: tuple[int, ...]) -> ThreeAugment | None:
    """Read "3-augment"; None is any other text. Nothing comes in from outside: no `fill`."""
    return ThreeAugment() if text == FORM else None
