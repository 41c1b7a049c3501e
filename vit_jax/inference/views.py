# SPDX-License-Identifier: Apache-2.0
"""What a model sees of images: read, checked and brought to size, some ahead of their turn."""

import collections
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data import evaluation_view
from vit_jax.errors import UserError, shown
from vit_jax.inference.images import from_pillow, read_image
from vit_jax.inference.trained import Trained

Source: TypeAlias = str | Path | bytes | np.ndarray | Image.Image
_T = TypeVar("_T")
_U = TypeVar("_U")


def check_channels(trained: Trained) -> None:
    """Raise UserError for a model of other images than grey or RGB."""
    if trained.channels not in (1, 3):
        raise UserError(f"the model takes {trained.channels} channels; images have 1 or 3")


def read_view(trained: Trained, source: Source) -> np.ndarray | str:
    """Return what the model sees of an image, or what is wrong with it."""
    try:
        if isinstance(source, np.ndarray):
            image = _as_image(source, trained.channels)
        elif isinstance(source, Image.Image):
            image = from_pillow(source, trained.channels)
        else:
            image = read_image(source, trained.channels)
    except UserError as error:
        return str(error)
    try:
        return evaluation_view(image, trained.transform, trained.image_size)
    except UserError as error:
        name = shown(str(source)) if isinstance(source, (str, Path)) else "image"
        return f"{name}: {error}"


def _as_image(image: np.ndarray, channels: int) -> UInt8[np.ndarray, "H W C"]:
    if image.ndim == 2 and channels == 1:
        image = image[..., None]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != channels or not image.size:
        raise UserError(
            f"an array of {image.dtype} {image.shape} is no image for this model; "
            f"it takes uint8 (H, W, {channels})"
        )
    return image


def ahead(items: Iterable[_T], start: Callable[[_T], _U], count: int) -> Iterator[_U]:
    """Yield start(item) for each item, with `count` items started ahead."""
    started: collections.deque[_U] = collections.deque()
    for item in items:
        started.append(start(item))
        if len(started) > count:
            yield started.popleft()
    yield from started
