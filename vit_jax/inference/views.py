# SPDX-License-Identifier: Apache-2.0
"""What a model sees of images: read, checked and brought to size, some ahead of their turn."""

import concurrent.futures
import functools
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data import evaluation_view
from vit_jax.errors import UserError, shown
from vit_jax.evals.passes import ahead
from vit_jax.inference.images import from_pillow, read_image
from vit_jax.inference.trained import Trained

Source: TypeAlias = str | Path | bytes | np.ndarray | Image.Image
_AHEAD = 2  # batches that are decoded before they are wanted


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


def file_batches(
    trained: Trained, files: Sequence[str], size: int, names: list[str], errors: list[str]
) -> Generator[dict[str, np.ndarray], None, None]:
    """Decode image files in threads; yield batches of `size`, as `evals.Batches` are.

    The files that could be read are appended to `names`, in the order of the stream. What is wrong
    with the others, which have rows of mask 0, is appended to `errors`.
    """
    pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="decode")
    view = functools.partial(read_view, trained)

    def decode(start: int) -> list[tuple[str, concurrent.futures.Future]]:
        return [(file, pool.submit(view, file)) for file in files[start : start + size]]

    try:
        for views in ahead(range(0, len(files), size), decode, _AHEAD):
            image = np.zeros((size, *trained.image_size, trained.channels), np.uint8)
            mask = np.zeros(size, np.float32)
            for row, (file, decoding) in enumerate(views):
                found = decoding.result()
                if isinstance(found, str):
                    errors.append(found)
                else:
                    image[row], mask[row] = found, 1
                    names.append(file)
            yield {"image": image, "mask": mask}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
