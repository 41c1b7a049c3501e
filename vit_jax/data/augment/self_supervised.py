# SPDX-License-Identifier: Apache-2.0
"""The colours of self-supervised views (SimCLR arXiv:2002.05709, app. A; BYOL arXiv:2006.07733).

The numbers are BYOL's (its table 6), which DINO (arXiv:2104.14294) took over: colour jitter, grey,
a Gaussian blur and solarization, each with a probability, in this order. As in DINO the pixels are
Pillow's, and the changes of colour what torchvision's ColorJitter does to Pillow's images.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageEnhance, ImageFilter, ImageOps

from vit_jax.data.augment.pillow import Picture, from_pillow, to_pillow
from vit_jax.data.images.ops import Image, Operation
from vit_jax.errors import UserError

FORM = "dino-blur0.5-solarize0.2 (keys blur 0..1, solarize 0..1, jitter 0..2)"
_JITTER_PROB, _GREY_PROB = 0.8, 0.2
_SIGMA = (0.1, 2.0)  # of the blur, in pixels
_THRESHOLD = 128  # the lowest level that solarization inverts
_NUMBER = r"\d+(\.\d+)?"
# The highest value of each key, and the default; a blur must be given.
_KEYS: dict[str, tuple[float, str | None]] = {
    "blur": (1.0, None),
    "solarize": (1.0, "0"),
    "jitter": (2.0, "1"),
}


def shift_hue(picture: Picture, shift: float) -> Picture:
    """Turn the hue by a share of the circle, in steps of 1 / 255; a grey picture has none."""
    if picture.mode == "L":
        return picture
    hue, saturation, value = picture.convert("HSV").split()
    steps = int(shift * 255)
    turned = hue.point([(level + steps) % 256 for level in range(256)])
    return PillowImage.merge("HSV", (turned, saturation, value)).convert(picture.mode)


# By how much each is changed at most, either way, and how. Saturation leaves a grey image alone.
_JITTER: dict[str, tuple[float, Callable[[Picture, float], Picture]]] = {
    "brightness": (0.4, lambda picture, by: ImageEnhance.Brightness(picture).enhance(1 + by)),
    "contrast": (0.4, lambda picture, by: ImageEnhance.Contrast(picture).enhance(1 + by)),
    "saturation": (0.2, lambda picture, by: ImageEnhance.Color(picture).enhance(1 + by)),
    "hue": (0.1, shift_hue),
}


def _grey(picture: Picture) -> Picture:
    return picture.convert("L").convert(picture.mode)


def _blur(picture: Picture, uniform: float) -> Picture:
    low, high = _SIGMA
    return picture.filter(ImageFilter.GaussianBlur(low + (high - low) * uniform))


def _solarize(picture: Picture) -> Picture:
    return ImageOps.solarize(picture, _THRESHOLD)


class SelfSupervised(NamedTuple):
    """Jitter the colours, then make the image grey, blur it and solarize it, each at a chance."""

    blur: float  # probability
    solarize: float  # probability
    strength: float  # of the jitter; 1 is the published one

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        # All numbers are drawn, used or not: what follows in the generator is always the same.
        jitter, grey, blur, width, solarize = rng.random(5).tolist()
        order, amounts = rng.random((2, len(_JITTER))).tolist()
        picture = to_pillow(image)
        if self.strength and jitter < _JITTER_PROB:
            names = tuple(_JITTER)
            for which in np.argsort(order).tolist():
                picture = self._change(names[which], picture, amounts[which])
        if grey < _GREY_PROB:
            picture = _grey(picture)
        if blur < self.blur:
            picture = _blur(picture, width)
        if solarize < self.solarize:
            picture = _solarize(picture)
        return from_pillow(picture)

    def parts(self) -> dict[str, Operation]:
        found: dict[str, Callable[[Picture, float], Picture]] = {}
        for name in _JITTER if self.strength else ():
            found[name] = lambda picture, uniform, name=name: self._change(name, picture, uniform)
        found["grayscale"] = lambda picture, uniform: _grey(picture)
        if self.blur:
            found["blur"] = _blur
        if self.solarize:
            found["solarize"] = lambda picture, uniform: _solarize(picture)
        return {
            name: lambda image, rng, run=run: from_pillow(run(to_pillow(image), rng.random()))
            for name, run in found.items()
        }

    def _change(self, name: str, picture: Picture, uniform: float) -> Picture:
        most, change = _JITTER[name]
        return change(picture, self.strength * most * (2 * uniform - 1))


def read(text: str, fill: tuple[int, ...]) -> SelfSupervised | None:
    """Read "dino-blur0.1-solarize0.2" and the like; None is any other text.

    Nothing comes in from outside the image: no `fill`.
    """
    kind, *parts = text.split("-")
    if kind != "dino":
        return None
    values = {key: default for key, (_, default) in _KEYS.items() if default is not None}
    given: set[str] = set()
    for part in parts:
        key = re.match("[A-Za-z_]*", part)[0]  # pyright: ignore[reportOptionalSubscript]
        value = part[len(key) :]
        if key not in _KEYS:
            raise UserError(f"auto_augment={text!r}: no key {part!r}; keys: {', '.join(_KEYS)}")
        if key in given:
            raise UserError(f"auto_augment={text!r}: key {key!r} is given twice")
        most, _ = _KEYS[key]
        if not re.fullmatch(_NUMBER, value) or float(value) > most:
            raise UserError(f"auto_augment={text!r}: {key}={value} must be in 0..{most:g}")
        given.add(key)
        values[key] = value
    if "blur" not in given:
        raise UserError(f"auto_augment={text!r}: no probability of the blur; write dino-blur0.5")
    blur, solarize, jitter = (float(values[key]) for key in _KEYS)
    return SelfSupervised(blur, solarize, jitter)
