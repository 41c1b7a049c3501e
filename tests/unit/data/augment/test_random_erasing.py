# SPDX-License-Identifier: Apache-2.0
"""Random erasing against its definition, drawn by NumPy one try after another."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax.data import DataConfig, check
from vit_jax.data.augment.mix import erase

COUNT, HEIGHT, WIDTH = 3000, 10, 40  # so that one try in three does not fit


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


def _by_definition(count):
    rng = np.random.default_rng(0)
    found = []
    while len(found) < count:
        for _ in range(10):
            area = rng.uniform(0.02, 1 / 3) * HEIGHT * WIDTH
            aspect = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3)))
            tall, broad = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if tall < HEIGHT and broad < WIDTH:
                top, left = rng.integers(HEIGHT - tall + 1), rng.integers(WIDTH - broad + 1)
                found.append((top, left, tall, broad))
                break
    return np.array(found)


def test_law_of_the_boxes(boxes):
    wanted = _by_definition(8000)

    def values(box):
        top, left, tall, broad = box.T
        room = HEIGHT - tall, WIDTH - broad
        return tall * broad, tall / broad, tall, broad, top / room[0], left / room[1]

    for a, b in zip(values(boxes), values(wanted), strict=True):
        at = np.unique(np.concatenate([a, b]))
        cdf = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (a, b)]
        # Kolmogorov and Smirnov's two-sample test at 1 in 1000.
        assert np.abs(cdf[0] - cdf[1]).max() < 1.95 * math.sqrt(1 / len(a) + 1 / len(b))


def test_noise_is_normal_and_each_pixel_and_channel_has_its_own(erased):
    noise = erased[(erased != 9).all(axis=-1)]
    assert len(noise) > 50_000
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(noise.T), np.eye(2), atol=0.02)
    assert len(np.unique(noise)) > 0.98 * noise.size


@pytest.mark.parametrize("prob", [-0.1, 1.1])
def test_probability_out_of_range(prob):
    with refused_by("settings.fields.check_range", "data.erasing_prob"):
        check(DataConfig(erasing_prob=prob))


def test_share_of_the_images(boxes):
    assert abs(len(boxes) / COUNT - 0.4) < 0.03


def test_where_no_box_fits_nothing_is_erased():
    images = jnp.ones((64, 1, 1, 3))
    np.testing.assert_array_equal(erase(jax.random.key(0), images, 1.0), images)


def test_dtype_stays():
    images = jnp.ones((4, 8, 8, 3), jnp.bfloat16)
    assert erase(jax.random.key(0), images, 1.0).dtype == jnp.bfloat16
