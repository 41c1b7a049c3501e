# SPDX-License-Identifier: Apache-2.0
"""What every augmentation policy is: a function of an image and a generator, with parts to show."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

Image = UInt8[np.ndarray, "H W C"]
Operation = Callable[[Image, np.random.Generator], Image]


@runtime_checkable  # beartype checks annotations with isinstance
class Policy(Protocol):
    """An augmentation of one image of 1 or 3 channels; can be pickled."""

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        """Return an image of the same shape; all randomness comes from `rng`."""
        ...

    def parts(self) -> dict[str, Operation]:
        """Return by name what the policy chooses from, each part always applied when called."""
        ...
