# SPDX-License-Identifier: Apache-2.0
"""RandAugment as timm has it, the one of DeiT's, Swin's and most PyTorch-born recipes.

Against Google's (`randaug`): each operation is applied with a probability, at a magnitude drawn
anew; with inc1 every operation is stronger at a higher magnitude; 15 operations, without cutout;
translations go by the image's side. DeiT and Swin set bicubic resampling, as here; timm's own
default draws between bilinear and bicubic.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from vit_jax.data.augment.pillow import Picture, Resampling, from_pillow, operate, to_pillow
from vit_jax.data.images.ops import Image, Operation
from vit_jax.errors import UserError

FORM = "rand-m9-mstd0.5-inc1 (timm's; keys m 0..30, n 1..16, mstd, mmax 1..30, inc 0 or 1, p 0..1)"
OPERATIONS = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd"),
    *("Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY"),
    *("TranslateX", "TranslateY"),
)
# How a key's value is written, its bounds, the words for them, and the default.
_KEYS: dict[str, tuple[str, float, float, str, str]] = {
    "m": (r"\d+", 0, 30, "a whole number in 0..30", "10"),
    "n": (r"\d+", 1, 16, "a whole number in 1..16", "2"),
    "mstd": (r"\d+(\.\d+)?", 0, math.inf, "a number from 0", "0"),
    "mmax": (r"\d+", 1, 30, "a whole number in 1..30", "10"),
    "inc": ("[01]", 0, 1, "0 or 1", "0"),
    "p": (r"\d+(\.\d+)?", math.ulp(0.0), 1, "above 0 and at most 1", "0.5"),
}
_UNIFORM = 100.0  # a standard deviation above it means "uniform"


class TimmRandAugment(NamedTuple):
    """Draw `num_ops` operations with replacement and apply each with probability `prob`."""

    magnitude: int  # the mean one, of which 10 is a full scale
    num_ops: int
    std: float  # of the magnitude, normal; above 100 it is uniform from 0 to `magnitude` instead
    limit: float  # magnitudes are clipped to 0..limit, so a `magnitude` above it is the limit
    increasing: bool  # whether a higher magnitude is a stronger change in every operation
    prob: float
    fill: tuple[int, ...]  # level of what comes in from outside the image

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        picture = to_pillow(image)
        for which in rng.integers(len(OPERATIONS), size=self.num_ops):
            if rng.random() < self.prob:
                picture = self._operate(OPERATIONS[which], picture, rng)
        return from_pillow(picture)

    def parts(self) -> dict[str, Operation]:
        return {
            name: lambda image, rng, name=name: from_pillow(
                self._operate(name, to_pillow(image), rng)
            )
            for name in OPERATIONS
        }

    def _operate(self, name: str, picture: Picture, rng: np.random.Generator) -> Picture:
        magnitude = float(self.magnitude)
        if self.std > _UNIFORM:
            magnitude = rng.uniform(0, magnitude)
        elif self.std > 0:
            magnitude = rng.normal(magnitude, self.std)
        sign = 1 if rng.random() < 0.5 else -1
        value = argument(name, min(max(magnitude, 0.0), self.limit), sign, self.increasing)
        return operate(name, picture, value, self.fill, Resampling.BICUBIC)


def argument(name: str, magnitude: float, sign: int, increasing: bool) -> float | int:
    """Return what an operation does at a magnitude; see `pillow.operate` for the units.

    Without `increasing`, a higher magnitude keeps more bits, inverts less, and enhances from 0.1 to
    1.9 instead of away from 1.
    """
    share = magnitude / 10
    match name:
        case "Rotate":
            return sign * share * 30
        case "Posterize":
            return 4 - int(share * 4) if increasing else int(share * 4)
        case "Solarize":
            threshold = min(256, int(share * 256))
            return 256 - threshold if increasing else threshold
        case "SolarizeAdd":
            return min(128, int(share * 110))
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return max(0.1, 1 + sign * share * 0.9) if increasing else share * 1.8 + 0.1
        case "ShearX" | "ShearY":
            return sign * share * 0.3
        case "TranslateX" | "TranslateY":
            return sign * share * 0.45
    return 0.0


def read(text: str, fill: tuple[int, ...]) -> TimmRandAugment | None:
    """Read "rand-m9-mstd0.5-inc1" and the like, with timm's defaults; None is any other text."""
    kind, *parts = text.split("-")
    if kind != "rand":
        return None
    found: dict[str, str] = {}
    for part in parts:
        key = re.match("[A-Za-z_]*", part)[0]  # pyright: ignore[reportOptionalSubscript]
        value = part[len(key) :]
        if key not in _KEYS:
            raise UserError(f"auto_augment={text!r}: no key {part!r}; keys: {', '.join(_KEYS)}")
        if key in found:
            raise UserError(f"auto_augment={text!r}: key {key!r} is given twice")
        pattern, low, high, words, _ = _KEYS[key]
        if not re.fullmatch(pattern, value) or not low <= float(value) <= high:
            raise UserError(f"auto_augment={text!r}: {key}={value} must be {words}")
        found[key] = value
    values = {key: found.get(key, default) for key, (*_, default) in _KEYS.items()}
    return TimmRandAugment(
        magnitude=int(values["m"]),
        num_ops=int(values["n"]),
        std=float(values["mstd"]),
        limit=float(values["mmax"]),
        increasing=values["inc"] == "1",
        prob=float(values["p"]),
        fill=fill,
    )
