# SPDX-License-Identifier: Apache-2.0
"""Block masks: how many patches, in blocks, and of each image by itself."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.objectives.block_masks import block_masks, gathered, mask_counts

GRID = (14, 14)


def test_as_many_patches_as_asked_for() -> None:
    counts = jnp.asarray([0, 1, 3, 20, 60, 98, 196])
    masks = block_masks(jax.random.key(0), 7, GRID, counts)
    assert masks.shape == (7, 196)
    np.testing.assert_array_equal(masks.sum(axis=1), counts)


def test_patches_lie_in_blocks() -> None:
    count = 50
    masks = np.asarray(block_masks(jax.random.key(1), 64, GRID, jnp.full(64, count)))
    grids = masks.reshape(64, *GRID)
    beside = (grids[:, :, 1:] & grids[:, :, :-1]).sum(axis=(1, 2)) / count
    rng = np.random.default_rng(0)
    alone = np.stack([rng.permutation(196) < count for _ in range(64)]).reshape(64, *GRID)
    scattered = (alone[:, :, 1:] & alone[:, :, :-1]).sum(axis=(1, 2)) / count
    assert beside.mean() > 0.6 > 0.3 > scattered.mean()


def test_an_images_mask_is_its_own() -> None:
    key = jax.random.key(2)
    many = block_masks(key, 6, GRID, jnp.asarray([30, 40, 50, 60, 70, 80]))
    few = block_masks(key, 3, GRID, jnp.asarray([30, 40, 50]))
    np.testing.assert_array_equal(many[:3], few)
    assert (np.asarray(many[0]) != np.asarray(block_masks(key, 2, GRID, jnp.full(2, 30))[1])).any()


def test_counts_cover_the_range() -> None:
    counts = np.asarray(mask_counts(jax.random.key(0), 64, 196, 0.5, (0.1, 0.5)))
    masked = np.sort(counts[counts > 0])
    assert len(masked) == 32
    assert masked.min() >= int(0.1 * 196)
    assert masked.max() <= int(0.5 * 196)
    ends = 196 * np.linspace(0.1, 0.5, 33)
    assert (masked >= np.floor(ends[:-1])).all()
    assert (masked <= ends[1:]).all()
    assert (np.diff(counts[counts > 0]) < 0).any()  # in random order


def test_gathered_places_and_weights() -> None:
    mask = jnp.asarray([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], bool)
    places, weights = gathered(mask, 3)
    np.testing.assert_array_equal(places, [[1, 3, 4], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(weights, [[1 / 3] * 3, [0] * 3, [1, 0, 0]], rtol=1e-6)
