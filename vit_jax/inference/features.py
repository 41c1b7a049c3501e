# SPDX-License-Identifier: Apache-2.0
"""Features of a trained model, and image files as the stream of batches that they come from."""

import collections
import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from vit_jax.data import evaluation_view
from vit_jax.errors import UserError
from vit_jax.evals.features import Encode
from vit_jax.inference.forward import make_apply
from vit_jax.inference.images import read_image, shown
from vit_jax.inference.trained import Trained

_AHEAD = 2  # batches that are decoded before they are wanted


def make_encode(trained: Trained) -> Encode:
    """Return (variables, images) -> features [B, D], what the model's head sees."""
    apply = make_apply(trained)

    def encode(variables: Any, image: jax.Array) -> jax.Array:
        return apply(variables, image).features

    return encode


class FileBatches:
    """One pass over image files, decoded in threads, as `evals.Batches` are.

    Attributes:
        names: the files that could be read, in the order of the stream.
        errors: what is wrong with the others, whose rows have the mask 0.
    """

    def __init__(self, trained: Trained, files: Sequence[str], batch_size: int) -> None:
        """Take the model that they are for."""
        self._trained, self._files, self._size = trained, files, batch_size
        self._pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="decode")
        self.names: list[str] = []
        self.errors: list[str] = []

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        view = functools.partial(read_view, self._trained)
        waiting: collections.deque[list[concurrent.futures.Future]] = collections.deque()
        for start in range(0, len(self._files), self._size):
            part = self._files[start : start + self._size]
            waiting.append([self._pool.submit(view, file) for file in part])
            if len(waiting) > _AHEAD:
                yield self._batch(waiting.popleft())
        while waiting:
            yield self._batch(waiting.popleft())

    def _batch(self, views: list[concurrent.futures.Future]) -> dict[str, np.ndarray]:
        shape = (*self._trained.image_size, self._trained.channels)
        image = np.zeros((self._size, *shape), np.uint8)
        mask = np.zeros(self._size, np.float32)
        for row, view in enumerate(views):
            file, found = view.result()
            if isinstance(found, str):
                self.errors.append(found)
            else:
                image[row], mask[row] = found, 1
                self.names.append(file)
        return {"image": image, "mask": mask}

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def file_batches(trained: Trained, files: Sequence[str]) -> Callable[[int], FileBatches]:
    """Return what starts a pass over image files in batches of a given size.

    Raises:
        UserError: a model of other images than grey or RGB.
    """
    if trained.channels not in (1, 3):
        raise UserError(f"the model takes {trained.channels} channels; images have 1 or 3")
    return functools.partial(FileBatches, trained, files)


def read_view(trained: Trained, file: str) -> tuple[str, UInt8[np.ndarray, "H W C"] | str]:
    """Return a file's name and what the model sees of it, or what is wrong with it."""
    try:
        image = read_image(file, trained.channels)
    except UserError as error:
        return file, str(error)
    try:
        return file, evaluation_view(image, trained.transform, trained.image_size)
    except UserError as error:
        return file, f"{shown(file)}: {error}"
