# SPDX-License-Identifier: Apache-2.0
"""Decoded images kept in memory, for data sets small enough that all of them fit."""

from typing import NamedTuple

import numpy as np

from vit_jax.data.sources import Label
from vit_jax.data.transform import Loaded, Transform

# What the images of one data set may take in one process: CIFAR's 50,000 of 32x32 take 154 MB.
MAX_CACHED_BYTES = 256 * 2**20


class Example(NamedTuple):
    """An image on its way to the model: as it was decoded or, where `viewed`, after `view`."""

    image: Loaded
    label: Label
    viewed: bool


class PixelCache:
    """Examples by index, where as many of their size fit as the data set has."""

    def __init__(self, num_examples: int, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._num_examples = num_examples
        self._max_bytes = max_bytes
        self._examples: dict[int, Example] = {}

    def get(self, index: int) -> Example | None:
        return self._examples.get(index)

    def load(self, index: int, data: bytes, label: Label, transform: Transform) -> Example:
        """Decode and view an example, and keep the later of the two stages that fits."""
        image = transform.load(data)
        viewed = transform.view(image)
        for stage, is_viewed in ((viewed, True), (image, False)):
            if isinstance(stage, np.ndarray) and self._fits(stage.nbytes):
                kept = stage.copy()  # a part would hold the whole
                kept.flags.writeable = False
                self._examples[index] = Example(kept, label, is_viewed)
                break
        return Example(viewed, label, True)

    def _fits(self, num_bytes: int) -> bool:
        return num_bytes * self._num_examples <= self._max_bytes
