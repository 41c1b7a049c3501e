# SPDX-License-Identifier: Apache-2.0
"""Patches replaced, kept and put back, on tokens that are their own numbers."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.layers import masking

TOKENS = jnp.arange(8.0).reshape(1, 4, 2)  # four patches


def test_replace() -> None:
    token = jnp.full((1, 1, 2), -1.0)
    found = masking.replace(TOKENS, token, jnp.asarray([[0, 3, 4, 2]]))
    np.testing.assert_array_equal(found[0, :, 0], [0, 6, -1, 4])


def test_keep_leaves_the_prefix() -> None:
    found = masking.keep(TOKENS, jnp.asarray([[2, 0]]), 1)
    np.testing.assert_array_equal(found[0, :, 0], [0, 6, 2])


def test_restore_undoes_keep() -> None:
    shuffle = jnp.asarray([[2, 0, 1]])
    order = jnp.argsort(shuffle, axis=1)
    kept = masking.keep(TOKENS, shuffle[:, :2], 1)
    found = masking.restore(kept, jnp.full((1, 1, 2), -1.0), order, 1)
    np.testing.assert_array_equal(found[0, :, 0], [0, 2, -1, 6])


def test_every_key_shuffles_its_own() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    found = np.asarray(masking.shuffled(keys, 16))
    assert [sorted(row) for row in found.tolist()] == [list(range(16))] * 3
    assert len({tuple(row) for row in found.tolist()}) == 3
    np.testing.assert_array_equal(masking.shuffled(keys[1:], 16), found[1:])


def test_drawn_patches_are_a_fixed_number_and_each_image_has_its_own() -> None:
    found = np.asarray(masking.drawn(jax.random.key(0), (4, 16), 0.7))
    assert found.shape == (4, 5)  # of 4.8
    assert all(len(set(row)) == 5 and set(row) < set(range(16)) for row in found.tolist())
    assert len({tuple(row) for row in found.tolist()}) == 4
    assert masking.num_kept(16, 0.99) == 1
    assert masking.num_kept(100, 0.9) == 10  # 100 * (1 - 0.9) is 9.99...
