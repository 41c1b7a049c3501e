# SPDX-License-Identifier: Apache-2.0
"""Features of a trained model, and image files as the stream of batches that they come from."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax.evals import Predict
from vit_jax.inference.forward import make_apply
from vit_jax.inference.trained import Trained
from vit_jax.inference.views import ahead, check_channels, read_view

_AHEAD = 2  # batches that are decoded before they are wanted
_Decoding = tuple[str, concurrent.futures.Future]  # a file, and what `read_view` makes of it


def make_encode(trained: Trained) -> Predict:
    """Return (variables, batch) -> features [B, D], what the model's head sees."""
    apply = make_apply(trained)

    def encode(variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        return apply(variables, batch["image"]).features

    return encode


class FileBatches:
    """One pass over image files, decoded in threads, as `evals.Batches` are.

    Attributes:
        names: the files that could be read, in the order of the stream.
        errors: of the other files, which have rows of mask 0.
    """

    def __init__(self, trained: Trained, files: Sequence[str], batch_size: int) -> None:
        """Take the model that they are for."""
        self._trained, self._files, self._size = trained, files, batch_size
        self._pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="decode")
        self.names: list[str] = []
        self.errors: list[str] = []

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        view = functools.partial(read_view, self._trained)

        def decode(start: int) -> list[_Decoding]:
            files = self._files[start : start + self._size]
            return [(file, self._pool.submit(view, file)) for file in files]

        for views in ahead(range(0, len(self._files), self._size), decode, _AHEAD):
            yield self._batch(views)

    def _batch(self, views: list[_Decoding]) -> dict[str, np.ndarray]:
        shape = (*self._trained.image_size, self._trained.channels)
        image = np.zeros((self._size, *shape), np.uint8)
        mask = np.zeros(self._size, np.float32)
        for row, (file, view) in enumerate(views):
            found = view.result()
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

    Raises UserError: a model of other images than grey or RGB.
    """
    check_channels(trained)
    return functools.partial(FileBatches, trained, files)
