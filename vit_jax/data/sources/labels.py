# SPDX-License-Identifier: Apache-2.0
"""Labels that TFDS's records do not hold as such: those of VTAB (arXiv:1910.04867).

As task_adaptation (google-research) derives them from the objects in a scene, or by putting classes
together. `NAME?label=LABEL` names them, as it does a dataset's own class labels.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np

from vit_jax.data.images.decode import decode

# Ends of the intervals (low, high] of a distance.
_PIXELS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
_METRES = (-100.0, 8.0, 20.0, 999.0)


class Derived(NamedTuple):
    """A label computed from the features of an example: a class id, and what the ids mean."""

    class_names: tuple[str, ...]
    of: Callable[[Mapping[str, Any]], int]


def interval(value: float, ends: Sequence[float]) -> int:
    """Return the last interval that begins below a value; -1 where none does."""
    return int(np.searchsorted(np.asarray(ends, np.float32), np.float32(value), side="left")) - 1


def _count(example: Mapping[str, Any]) -> int:
    return len(example["objects"]["size"]) - 3


def _nearest_object(example: Mapping[str, Any]) -> int:
    return interval(float(np.min(np.asarray(example["objects"]["pixel_coords"])[:, 2])), _PIXELS)


def _nearest_vehicle(example: Mapping[str, Any]) -> int:
    """Class the z of the nearest car, van or truck; 1,000 metres where there is none."""
    kinds = np.asarray(example["objects"]["type"])
    away = np.asarray(example["objects"]["location"]).reshape(-1, 3)[kinds < 3, 2]
    return interval(float(np.min(away, initial=1000.0)), _METRES)


def _grouped(example: Mapping[str, Any], *, feature: str, size: float) -> int:
    return int(int(example[feature]) // size)


def _groups(feature: str, count: int, num_classes: int) -> Derived:
    of = functools.partial(_grouped, feature=feature, size=count / num_classes)
    return Derived(tuple(map(str, range(num_classes))), of)


def _ranges(ends: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(ends))


# By dataset and label.
DERIVED: Mapping[str, Mapping[str, Derived]] = {
    "clevr": {
        "count": Derived(tuple(f"{n} objects" for n in range(3, 11)), _count),
        "distance": Derived(_ranges(_PIXELS), _nearest_object),
    },
    "dsprites": {
        "location": _groups("label_x_position", 32, 16),
        "orientation": _groups("label_orientation", 40, 16),
    },
    "kitti": {
        "distance": Derived((*_ranges(_METRES), "no vehicle"), _nearest_vehicle),
    },
}


def brighten(image: bytes) -> bytes:
    """Turn the white of dsprites' images, which is 1, into 255."""
    return cv2.imencode(".png", decode(image, 1) * np.uint8(255))[1].tobytes()
