# SPDX-License-Identifier: Apache-2.0
"""AutoAugment (arXiv:1805.09501): the policies found for CIFAR-10 and ImageNet, in its appendix.

Levels 0..9 are ten evenly spaced values of the paper's ranges: rotation to 30 degrees, shear to
0.3, translation to 150 of 331 pixels, each with a random sign; solarize 0..256, posterize 4..8
bits, the rest 0.1..1.9. Nearest pixels, and the data's mean from outside, are as in the authors'
code for CIFAR-10 (tensorflow/models, research/autoaugment).

The published codes disagree on the rest. The authors' takes tenths of the ranges, keeps 4..0 bits,
solarizes from 256 down and translates by up to 10 of 32 pixels; torchvision's keeps 8..4 bits,
solarizes from 255 down and enhances by 1 +- 0.9; timm's "original" takes tenths and bicubic pixels.
"""

import dataclasses
import re

import numpy as np

from vit_jax.data.augment.pillow import Picture, Resampling, from_pillow, operate, to_pillow
from vit_jax.data.augment.policy import Image, Operation

FORM = "autoaugment(imagenet) or autoaugment(cifar10)"

# Two operations a line: name, probability, level; no level where the operation has none.
_TABLES = {
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6
        Equalize 0.8, Equalize 0.6
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4, Solarize 0.2 4
        Equalize 0.4, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6
        Posterize 0.8 5, Equalize 1.0
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6
        Equalize 0.0, Equalize 0.8
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6
        ShearX 0.6 5, Equalize 1.0
        Color 0.4 0, Equalize 0.6
        Equalize 0.4, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Equalize 0.8, Equalize 0.6
    """,
    "cifar10": """
        Invert 0.1, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5, Equalize 0.9
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6, Equalize 0.5
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3, AutoContrast 0.4
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0
        Equalize 0.2, AutoContrast 0.6
        Equalize 0.2, Equalize 0.6
        Color 0.9 9, Equalize 0.6
        AutoContrast 0.8, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9, Solarize 0.8 3
        Equalize 0.8, Invert 0.1
        TranslateY 0.7 9, AutoContrast 0.9
    """,
}


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation of a sub-policy: how often, and at which of ten levels if it has any."""

    name: str
    prob: float
    level: int | None = None

    def __str__(self) -> str:
        return self.name if self.level is None else f"{self.name} {self.level}"


SubPolicy = tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class AutoAugment:
    """Draw one of 25 sub-policies and apply its operations, each with its probability.

    Attributes:
        sub_policies: the policy.
        fill: level of what comes in from outside the image.
    """

    sub_policies: tuple[SubPolicy, ...]
    fill: tuple[int, ...]

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        """Return the augmented image."""
        steps = self.sub_policies[int(rng.integers(len(self.sub_policies)))]
        chosen = tuple(step for step in steps if rng.random() < step.prob)
        return self._apply(chosen, image, rng)

    def parts(self) -> dict[str, Operation]:
        """Return the sub-policies with all their operations, numbered as in the paper."""
        return {
            f"{i}: " + ", ".join(map(str, steps)): (
                lambda image, rng, steps=steps: self._apply(steps, image, rng)
            )
            for i, steps in enumerate(self.sub_policies)
        }

    def _apply(self, steps: SubPolicy, image: Image, rng: np.random.Generator) -> Image:
        picture: Picture = to_pillow(image)
        for step in steps:
            sign = 1 if rng.random() < 0.5 else -1
            value = argument(step.name, step.level or 0, sign)
            picture = operate(step.name, picture, value, self.fill, Resampling.NEAREST)
        return from_pillow(picture)


def argument(name: str, level: int, sign: int) -> float | int:
    """Return what an operation does at a level 0..9; see `pillow.operate` for the units."""
    share = level / 9
    match name:
        case "Rotate":
            return sign * share * 30
        case "ShearX" | "ShearY":
            return sign * share * 0.3
        case "TranslateX" | "TranslateY":
            return sign * share * 150 / 331
        case "Solarize":
            return round(share * 256)
        case "Posterize":
            return 4 + round(share * 4)
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return 0.1 + share * 1.8
    return 0.0


def sub_policies(name: str) -> tuple[SubPolicy, ...]:
    """Return the policy found for "imagenet" or "cifar10"."""
    lines = _TABLES[name].strip().splitlines()
    return tuple(tuple(_step(*words.split()) for words in line.split(",")) for line in lines)


def _step(name: str, prob: str, level: str | None = None) -> Step:
    return Step(name, float(prob), None if level is None else int(level))


def read(text: str, fill: tuple[int, ...]) -> AutoAugment | None:
    """Read "autoaugment(imagenet)" or "autoaugment(cifar10)"; None is any other text."""
    match = re.fullmatch(r"autoaugment\((\w+)\)", text)
    if match is None or match[1] not in _TABLES:
        return None
    return AutoAugment(sub_policies(match[1]), fill)
