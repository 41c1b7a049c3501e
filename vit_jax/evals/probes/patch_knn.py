# SPDX-License-Identifier: Apache-2.0
"""Segmentation by the nearest patches: no training, as in arXiv:2306.01667 (dense retrieval).

A patch of a test image takes its classes from the k training patches of the largest cosine
similarity s, which vote with exp(s / T) for the classes of their pixels.
"""

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Float32, UInt8

from vit_jax.data.sources.masks import IGNORED
from vit_jax.evals.probes.knn import nearest

K = 30
MAX_PATCHES = 2**19  # training patches that are kept, drawn at random from more


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
