# SPDX-License-Identifier: Apache-2.0
"""Decoded images kept in memory, for data sets small enough that all of them fit."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.transform import Loaded, Transform

# What the images of one data set may take in one process: CIFAR's 50,000 of 32x32 take 154 MB.
MAX_CACHED_BYTES = 256 * 2**20


class Decoded(NamedTuple):
    """An example on its way to the model.

    Attributes:
        images: of each transform, as it was decoded or, where `viewed`, after `view`.
        viewed: which of the two.
        fields: the source's other fields.
    """

    images: tuple[Loaded, ...]
    viewed: bool
    fields: Mapping[str, Any]


class PixelCache:
    """Examples by index, where as many of their size fit as the data set has."""

    def __init__(
        self, num_examples: int, transforms: Sequence[Transform], max_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self._num_examples = num_examples
        self._transforms = transforms
        self._max_bytes = max_bytes
        self._examples: dict[int, Decoded] = {}

    def get(self, index: int) -> Decoded | None:
        return self._examples.get(index)

    def load(self, index: int, data: bytes, fields: Mapping[str, Any]) -> Decoded:
        """Decode and view an example, and keep the later of the two stages that fits.

        Raises ValueError, UserError: as `Transform`.
        """
        images = tuple(transform.load(data) for transform in self._transforms)
        views = tuple(t.view(image) for t, image in zip(self._transforms, images, strict=True))
        for stage, viewed in ((views, True), (images, False)):
            if self._fits(stage):
                kept = tuple(_own(image) for image in stage)
                self._examples[index] = Decoded(kept, viewed, fields)
                break
        return Decoded(views, True, fields)

    def _fits(self, images: tuple[Loaded, ...]) -> bool:
        if not all(isinstance(image, np.ndarray) for image in images):
            return False
        num_bytes = sum(np.asarray(image).nbytes for image in images)
        return num_bytes * self._num_examples <= self._max_bytes


def _own(image: Loaded) -> np.ndarray:
    kept = np.array(image)  # a view would keep the whole array
    kept.flags.writeable = False
    return kept
