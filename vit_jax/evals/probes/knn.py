# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours, weighted, for classes of images and for segmentation by patches: no training.

As in DINO (arXiv:2104.14294) after Wu et al. (arXiv:1805.01978): the k training images of the
largest cosine similarity s vote for their classes with exp(s / T). A patch of a test image takes
its classes from its k nearest training patches in the same way, which vote for the classes of their
pixels (arXiv:2306.01667, dense retrieval).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float32, Int, UInt8

from vit_jax.data.sources.dense.masks import IGNORED
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.probes.base import Score
from vit_jax.evals.probes.features import FeatureSet

K = (10, 20, 100, 200)
TEMPERATURE = 0.07
_TEST_ROWS, _TRAIN_ROWS = 4096, 16384  # of the features that are on the devices at a time
PATCH_K = 30
MAX_PATCHES = 2**19  # training patches that are kept, drawn at random from more


def run(
    train: FeatureSet,
    test: FeatureSet,
    *,
    mesh: Mesh,
    k: Sequence[int] = (),
    temperature: float = TEMPERATURE,
) -> list[Score]:
    """Return test top-1 for every k; by default for those of `K` that there are images for.

    Raises UserError: a k beyond the number of training images.
    """
    k = choose_k(k, len(train.features), train.name)
    similarity, index = nearest(train.features, test.features, max(k), mesh=mesh)
    labels = train.labels[index]
    results = []
    for value in k:
        guesses = vote(similarity[:, :value], labels[:, :value], train.num_classes, temperature)
        top1 = float((guesses == test.labels).mean())
        settings = {"k": value, "temperature": temperature}
        results.append(Score("knn", settings, (top1,), len(test.labels)))
    return results


def choose_k(k: Sequence[int], count: int, name: str) -> Sequence[int]:
    """Return k, by default those of `K` up to the `count` training images of `name`.

    Raises UserError: a k above `count`.
    """
    if k and max(k) > count:
        raise UserError(f"k={max(k)}: {name} has only {count:,} images; choose a smaller k")
    return k or [value for value in K if value <= count] or [count]


def nearest(
    train: Float[np.ndarray, "N D"], test: Float[np.ndarray, "M D"], k: int, *, mesh: Mesh
) -> tuple[Float[np.ndarray, "M k"], Int[np.ndarray, "M k"]]:
    """Return cosine similarity and index of the k nearest training rows, the nearest first.

    Where several are equal, the lower index comes first. The test rows are split over the devices;
    what is there at a time is some thousands of rows of both sides and of their similarities.
    """
    unit = sharding.batch_shards(mesh)
    rows = min(_TEST_ROWS, math.ceil(len(test) / unit) * unit)
    cut = min(_TRAIN_ROWS, len(train))
    split = sharding.batch_sharding(mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for start in range(0, len(test), rows):
        queries = jax.device_put(_padded(test[start : start + rows], rows), split)
        best = (np.full((rows, k), -np.inf, np.float32), np.zeros((rows, k), np.int32))
        best = jax.device_put(best, split)
        for first in range(0, len(train), cut):
            block = jax.device_put(_padded(train[first : first + cut], cut), whole)
            best = _merge(*best, queries, block, jnp.int32(first), jnp.int32(len(train)))
        count = min(rows, len(test) - start)
        found.append((np.asarray(best[0])[:count], np.asarray(best[1])[:count]))
    similarity, index = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return similarity, index


@jax.jit
def _merge(
    best: Float[Array, "R k"],
    index: Int[Array, "R k"],
    test: Float[Array, "R D"],
    train: Float[Array, "T D"],
    first: Int[Array, ""],
    total: Int[Array, ""],
) -> tuple[Float[Array, "R k"], Int[Array, "R k"]]:
    """Merge the rows `first` on of the training set into the best of those before them."""
    # The default precision of a TPU, and of an H100, would swap neighbours.
    new = jnp.matmul(_unit(test), _unit(train).T, precision=jax.lax.Precision.HIGHEST)
    numbers = jnp.broadcast_to(first + jnp.arange(train.shape[0], dtype=index.dtype), new.shape)
    similarity = jnp.concatenate([best, jnp.where(numbers < total, new, -jnp.inf)], axis=1)
    top, where = jax.lax.top_k(similarity, best.shape[1])
    numbers = jnp.concatenate([index, numbers], axis=1)
    return top, jnp.take_along_axis(numbers, where, axis=1)


def vote(
    similarity: Float[np.ndarray, "M k"],
    labels: Int[np.ndarray, "M k"],
    num_classes: int,
    temperature: float,
) -> Int[np.ndarray, " M"]:
    """Return the class with the largest sum of exp(similarity / temperature), ties to the lower."""
    # Relative to the nearest, which gets weight 1: exp cannot overflow, and the ranks are the same.
    weights = np.exp((similarity.astype(np.float64) - similarity[:, :1]) / temperature)
    guesses = []
    for start in range(0, len(labels), _TEST_ROWS):
        near, weight = labels[start : start + _TEST_ROWS], weights[start : start + _TEST_ROWS]
        cells = np.arange(len(near))[:, None] * num_classes + near
        sums = np.bincount(cells.ravel(), weight.ravel(), minlength=len(near) * num_classes)
        guesses.append(sums.reshape(len(near), num_classes).argmax(axis=1))
    return np.concatenate(guesses)


def _unit(x: Float[Array, "R D"]) -> Float[Array, "R D"]:
    return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _padded(x: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(x, ((0, rows - len(x)), (0, 0)))


def class_shares(
    masks: UInt8[np.ndarray, "N H W"], grid: tuple[int, int], num_classes: int
) -> Float32[np.ndarray, "N P Q K"]:
    """Return how much of each patch belongs to each class, without the ignored pixels.

    The shares of a patch sum to one, or to zero where all of its pixels are ignored.
    """
    count, height, width = masks.shape
    rows = np.arange(height) * grid[0] // height
    columns = np.arange(width) * grid[1] // width
    cells = rows[:, None] * grid[1] + columns
    size = grid[0] * grid[1] * num_classes
    found = np.zeros((count, size), np.float32)
    for sums, mask in zip(found, masks, strict=True):
        known = mask != IGNORED
        sums[:] = np.bincount(cells[known] * num_classes + mask[known], minlength=size)
    found = found.reshape(count, *grid, num_classes)
    return found / np.maximum(found.sum(axis=-1, keepdims=True), 1)


class Bank:
    """Training patches with the classes of their pixels."""

    def __init__(
        self,
        tokens: Float[np.ndarray, "N P Q D"],
        masks: UInt8[np.ndarray, "N H W"],
        num_classes: int,
        seed: int = 0,
    ) -> None:
        """Keep the patches with a labelled pixel, at most `MAX_PATCHES`, drawn by the seed."""
        grid = (tokens.shape[1], tokens.shape[2])
        shares = class_shares(masks, grid, num_classes).reshape(-1, num_classes)
        kept = np.flatnonzero(shares.sum(axis=1))
        if len(kept) > MAX_PATCHES:
            drawn = np.random.default_rng(seed).choice(kept, MAX_PATCHES, replace=False)
            kept = np.sort(drawn)
        self.shares = shares[kept]
        self.tokens = tokens.reshape(-1, tokens.shape[-1])[kept]

    def scores(
        self, tokens: Float[np.ndarray, "B P Q D"], k: int, temperature: float, *, mesh: Mesh
    ) -> Float32[np.ndarray, "B P Q K"]:
        """Return each patch's shares of the votes of its k nearest."""
        flat = tokens.reshape(-1, tokens.shape[-1])
        similarity, index = nearest(self.tokens, flat, k, mesh=mesh)
        weights = np.exp((similarity - similarity[:, :1]) / temperature)
        weights /= weights.sum(axis=1, keepdims=True)
        found = np.einsum("mk,mkc->mc", weights, self.shares[index])
        return found.reshape(*tokens.shape[:-1], -1).astype(np.float32)
