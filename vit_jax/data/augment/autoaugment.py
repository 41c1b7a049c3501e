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

import functools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.data.augment.pillow import Picture, Resampling, from_pillow, operate, to_pillow
from vit_jax.data.images.ops import Image, Operation

FORM = "autoaugment(imagenet) or autoaugment(cifar10)"

# A sub-policy a line: the policy's name, then for each operation its name, its probability and, if
# it has levels, its level.
_TABLE = Path(__file__).with_name("autoaugment.tsv")


class PolicyOp(NamedTuple):
    """One operation of a sub-policy: how often, and at which of ten levels if it has any."""

    name: str
    prob: float
    level: int | None = None

    def __str__(self) -> str:
        return self.name if self.level is None else f"{self.name} {self.level}"


SubPolicy = tuple[PolicyOp, ...]


class AutoAugment(NamedTuple):
    """Draw one of 25 sub-policies and apply its operations, each with its probability."""

    sub_policies: tuple[SubPolicy, ...]
    fill: tuple[int, ...]  # level of what comes in from outside the image

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        steps = self.sub_policies[int(rng.integers(len(self.sub_policies)))]
        chosen = tuple(step for step in steps if rng.random() < step.prob)
        return self._apply(chosen, image, rng)

    def parts(self) -> dict[str, Operation]:
        """Return the sub-policies with all their operations, numbered as in the paper."""
        return {
            f"{i}: {', '.join(map(str, steps))}": functools.partial(self._apply, steps)
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


@functools.cache
def sub_policies() -> dict[str, tuple[SubPolicy, ...]]:
    """Return the policies found for "imagenet" and "cifar10"."""
    lines = [line.split("\t") for line in _TABLE.read_text().splitlines()]
    found: dict[str, tuple[SubPolicy, ...]] = {}
    for policy, *operations in lines:
        words = [operation.split() for operation in operations]
        steps = tuple(PolicyOp(name, float(prob), *map(int, level)) for name, prob, *level in words)
        found[policy] = (*found.get(policy, ()), steps)
    return found


def read(text: str, fill: tuple[int, ...]) -> AutoAugment | None:
    """Read "autoaugment(imagenet)" or "autoaugment(cifar10)"; None is any other text."""
    match = re.fullmatch(r"autoaugment\((\w+)\)", text)
    if match is None or match[1] not in sub_policies():
        return None
    return AutoAugment(sub_policies()[match[1]], fill)
