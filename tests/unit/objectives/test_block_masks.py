# SPDX-License-Identifier: Apache-2.0
"""How many patches are masked, and where the masked ones are put."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.objectives.hiding import block_masks, gathered, mask_counts

KEY = jax.random.key(3)


@pytest.mark.parametrize("num_images, probability, masked", [(16, 0.5, 8), (11, 0.5, 5), (7, 1, 7)])
@pytest.mark.parametrize("ratio", [(0.1, 0.5), (0.0, 0.29), (0.3, 0.3)])
def test_counts_are_one_from_each_interval(num_images, probability, masked, ratio):
    edges = np.linspace(*ratio, masked + 1)
    for seed in range(20):
        key = jax.random.key(seed)
        counts = np.asarray(mask_counts(key, num_images, 10_000, float(probability), ratio))
        assert counts.shape == (num_images,)
        found = np.sort(counts)[num_images - masked :]
        assert not np.any(np.sort(counts)[: num_images - masked])
        assert (found >= np.floor(10_000 * edges[:-1]) - 1).all()
        assert (found <= 10_000 * edges[1:] + 1e-6).all()


def test_counts_are_uniform_in_their_interval_and_in_random_order():
    draw = functools.partial(mask_counts, num_images=8, num_patches=10_000)
    counts = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(KEY, 2000)))
    ordered = np.sort(counts, axis=1)[:, 4:]
    np.testing.assert_allclose(ordered.mean(axis=0), [1500, 2500, 3500, 4500], rtol=0.02)
    np.testing.assert_allclose(ordered.std(axis=0), np.full(4, 1000 / np.sqrt(12)), rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(ordered.T), np.eye(4), atol=0.1)
    np.testing.assert_allclose((counts > 0).mean(axis=0), np.full(8, 0.5), atol=0.05)
    np.testing.assert_allclose(counts.mean(axis=0), np.full(8, 1500), rtol=0.1)
    # Masked images are no neighbours more often than chance makes them: 4/8 * 3/7.
    assert ((counts[:, 0] > 0) & (counts[:, 1] > 0)).mean() == pytest.approx(3 / 14, abs=0.04)


def test_no_count_exceeds_the_buffer():
    # In float32, 100 * 0.29 is 29; int(100 * 0.29) is 28.
    assert int(100 * 0.29) == 28
    np.testing.assert_array_equal(mask_counts(KEY, 4, 100, 1.0, (0.29, 0.29)), np.full(4, 28))


def test_few_images_may_have_no_masked_one():
    np.testing.assert_array_equal(mask_counts(KEY, 1, 196), [0])


def test_blocks_are_dinov2s_where_nothing_else_is_asked_for():
    # MaskingGenerator in dinov2/data/masking.py: min_num_patches=4, min_aspect=0.3
    defaults = {k: p.default for k, p in inspect.signature(block_masks).parameters.items()}
    assert defaults["min_patches"] == 4
    assert defaults["aspect"] == pytest.approx((0.3, 1 / 0.3))


@pytest.mark.parametrize("size", [5, 8])
def test_gathered_positions_and_weights(size):
    masked = [[1, 4, 6], [], [0, 2, 3, 5, 7], [7]]
    mask = np.zeros((4, 8), bool)
    for image, positions in enumerate(masked):
        mask[image, positions] = True
    index, weights = gathered(jnp.asarray(mask), size)
    assert index.dtype == jnp.int32
    assert weights.dtype == jnp.float32
    for image, positions in enumerate(masked):
        fill = [0] * (size - len(positions))
        np.testing.assert_array_equal(index[image], positions + fill)
        share = 1 / max(len(positions), 1)
        np.testing.assert_allclose(weights[image], [share] * len(positions) + fill, rtol=1e-6)
