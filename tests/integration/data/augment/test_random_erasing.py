# SPDX-License-Identifier: Apache-2.0
"""Random erasing against its definition, drawn by NumPy one try after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.data.augment.test_random_erasing import COUNT, HEIGHT, WIDTH
from vit_jax.data.augment.random_erasing import erase


@pytest.fixture(scope="module")
def erased():
    images = jnp.full((COUNT, HEIGHT, WIDTH, 2), 9.0)
    return np.asarray(jax.jit(erase, static_argnums=2)(jax.random.key(0), images, 0.4))


@pytest.fixture(scope="module")
def boxes(erased):
    """Return (top, left, height, width) of every box; that it is one is checked."""
    masks = (erased != 9).all(axis=-1)
    np.testing.assert_array_equal(masks, (erased != 9).any(axis=-1))
    masks = masks[masks.any(axis=(1, 2))]
    rows, columns = masks.any(axis=2), masks.any(axis=1)
    np.testing.assert_array_equal(masks, rows[:, :, None] & columns[:, None, :])
    return np.stack([rows.argmax(1), columns.argmax(1), rows.sum(1), columns.sum(1)], axis=1)


def test_share_of_the_images(boxes):
    assert abs(len(boxes) / COUNT - 0.4) < 0.03


def test_where_no_box_fits_nothing_is_erased():
    images = jnp.ones((64, 1, 1, 3))
    np.testing.assert_array_equal(erase(jax.random.key(0), images, 1.0), images)


def test_dtype_stays():
    images = jnp.ones((4, 8, 8, 3), jnp.bfloat16)
    assert erase(jax.random.key(0), images, 1.0).dtype == jnp.bfloat16
