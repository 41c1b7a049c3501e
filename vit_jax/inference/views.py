# SPDX-License-Identifier: Apache-2.0
"""What a model sees of images: read, checked and brought to size, some ahead of their turn."""

import concurrent.futures
import functools
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Num
from PIL import Image

from vit_jax import models
from vit_jax.data import evaluation_view, is_native
from vit_jax.data.images import bands
from vit_jax.data.images.header import MAX_BYTES
from vit_jax.data.stream.native import as_rows, native_view
from vit_jax.errors import UserError, shown
from vit_jax.evals.passes import ahead
from vit_jax.inference.images import read_image, read_pillow
from vit_jax.inference.trained import Trained
from vit_jax.inference.units import as_numpy, as_pixels

# A file by its name or open, its bytes, a Pillow image, an array (H, W, C) of any library.
Source: TypeAlias = Any
_AHEAD = 2  # batches that are decoded before they are wanted


def check_channels(trained: Trained) -> None:
    """Raise UserError for a model of other images than grey or RGB whose bands nobody has named."""
    if trained.channels not in (1, 3) and not trained.reading.bands:
        takes = f"the model takes {trained.channels} channels; images have 1 or 3"
        raise UserError(f"{takes}, and only a run says which bands are read (data.bands)")


def read_view(trained: Trained, source: Source) -> np.ndarray | str:
    """Return what the model sees of an image, or what is wrong with it."""
    name = shown(str(source)) if isinstance(source, (str, os.PathLike)) else "image"
    try:
        image = _read(trained, source)
    except UserError as error:
        return str(error)
    try:
        if is_native(trained.transform):
            return native_view(image, trained.transform, native_patch(trained))
        return evaluation_view(image, trained.transform, trained.image_size)
    except UserError as error:
        return f"{name}: {error}"


def native_patch(trained: Trained) -> tuple[int, int]:
    """Return the (rows, columns) of a patch of a model of images of any size.

    Raises UserError: a model of images of one size.
    """
    patch = models.native_patch(trained.model)
    if not all(patch):
        raise UserError(
            f"transform.crop={trained.transform.crop} gives images of any shape, which this model "
            "does not take; choose resize or center"
        )
    return patch


def as_batch(
    trained: Trained, views: Mapping[int, np.ndarray], count: int
) -> dict[str, np.ndarray]:
    """Put what the model sees of images, by their rows, into a batch of `count`; others are zero.

    Returns "image" [count, H, W, C] uint8, of bands in the data's dtype; of images of any size rows
    of patches and their grids.
    """
    if is_native(trained.transform):
        length = trained.transform.lengths[0]
        patch = native_patch(trained)
        return as_rows(views, count, length, patch, trained.channels, trained.dtype)
    image = np.zeros((count, *trained.image_size, trained.channels), trained.dtype)
    for row, view in views.items():
        image[row] = view
    return {"image": image}


def is_one(images: Any) -> bool:
    """Return whether this is one image rather than several: no sequence, no array of four axes."""
    if isinstance(images, (str, bytes, bytearray, memoryview, os.PathLike, Image.Image)):
        return True
    if hasattr(images, "read"):
        return True
    return getattr(images, "ndim", 0) in (2, 3)


def picture(trained: Trained, view: np.ndarray) -> np.ndarray:
    """Return what is shown of what a model sees, grey or RGB; of bands, those of the run."""
    return bands.picture(view, trained.reading.bands_shown) if trained.reading.bands else view


def _read(trained: Trained, source: Any) -> Num[np.ndarray, "H W C"]:
    channels, reading = trained.channels, trained.reading
    if isinstance(source, Image.Image):
        if reading.bands:
            raise UserError("image: Pillow keeps no bands; give the file, its bytes or an array")
        return read_pillow(source, channels, reading)
    if hasattr(source, "read"):
        source = _contents(source)
    if isinstance(source, (bytearray, memoryview)):
        source = bytes(source)
    if isinstance(source, (str, bytes, os.PathLike)):
        return read_image(
            source if isinstance(source, (str, bytes)) else Path(source), channels, reading
        )
    found = as_numpy(source)
    return _as_bands(found, trained) if reading.bands else _as_image(found, channels)


def _contents(file: Any) -> bytes:
    """Read an open file, from where it stands."""
    try:
        data = file.read(MAX_BYTES + 1)
    except Exception as error:  # of others' objects
        raise UserError(f"image: cannot read it ({' '.join(str(error).split())})") from None
    if not isinstance(data, bytes):
        raise UserError("image: an open file must give bytes: open(name, 'rb')")
    if len(data) > MAX_BYTES:
        raise UserError(f"image: a file of more than {MAX_BYTES >> 20} MiB")
    return data


def _as_bands(image: np.ndarray, trained: Trained) -> Num[np.ndarray, "H W C"]:
    if image.ndim != 3 or image.shape[2] != trained.channels or image.dtype != trained.dtype:
        what = f"an array of {image.dtype} {image.shape} is no image for this model"
        raise UserError(f"{what}; it takes {trained.dtype} (H, W, {trained.channels})")
    return image


def _as_image(image: np.ndarray, channels: int) -> Num[np.ndarray, "H W C"]:
    if image.ndim == 2 and channels == 1:
        image = image[..., None]
    what = f"an array of {image.dtype} {image.shape} is no image for this model"
    if image.ndim != 3 or image.shape[2] != channels or not image.size:
        first = image.ndim == 3 and image.shape[0] == channels
        hint = "; channels come last: transpose by (1, 2, 0)" if first else ""
        raise UserError(f"{what}; it takes uint8 (H, W, {channels}){hint}")
    if not np.issubdtype(image.dtype, np.integer):
        raise UserError(f"{what}; it takes uint8 (H, W, {channels}), pixels of 0 to 255")
    return as_pixels(image)


def file_batches(
    trained: Trained, files: Sequence[str], size: int, names: list[str], errors: list[str]
) -> Generator[dict[str, np.ndarray], None, None]:
    """Decode image files in threads; yield batches of `size`, as an `evals.passes.Pass`.

    The files that could be read are appended to `names`, in the order of the stream. What is wrong
    with the others, which have rows of mask 0, is appended to `errors`.
    """
    pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="decode")
    view = functools.partial(read_view, trained)

    def decode(start: int) -> list[tuple[str, concurrent.futures.Future]]:
        return [(file, pool.submit(view, file)) for file in files[start : start + size]]

    try:
        for views in ahead(range(0, len(files), size), decode, _AHEAD):
            mask, seen = np.zeros(size, np.float32), {}
            for row, (file, decoding) in enumerate(views):
                found = decoding.result()
                if isinstance(found, str):
                    errors.append(found)
                else:
                    seen[row], mask[row] = found, 1
                    names.append(file)
            yield {**as_batch(trained, seen, size), "mask": mask}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
