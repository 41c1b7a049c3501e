# SPDX-License-Identifier: Apache-2.0
"""Weighted nearest neighbours, as in DINO (arXiv:2104.14294) after Wu et al. (arXiv:1805.01978).

The k training images of the largest cosine similarity s vote for their classes with exp(s / T).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.probes.base import Score
from vit_jax.evals.probes.features import FeatureSet

K = (10, 20, 100, 200)
TEMPERATURE = 0.07
_TEST_ROWS, _TRAIN_ROWS = 4096, 16384  # of the features that are on the devices at a time


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
