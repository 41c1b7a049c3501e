# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.data.mix import mixup, normalize, targets
from vit_jax.errors import UserError


def test_normalize_maps_levels_per_channel_and_casts_last():
    image = jnp.asarray([[[[0, 51, 255]]]], jnp.uint8)
    np.testing.assert_allclose(normalize(image, (0.5,), (0.5,))[0, 0, 0], [-1, -0.6, 1], atol=1e-6)
    mean, std = (0.1, 0.2, 0.3), (1.0, 2.0, 0.5)
    np.testing.assert_allclose(normalize(image, mean, std)[0, 0, 0], [-0.1, 0, 1.4], atol=1e-6)
    half = normalize(image, mean, std, jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half, normalize(image, mean, std).astype(jnp.bfloat16))


def test_normalize_refuses_three_means_for_grey_images():
    with pytest.raises(UserError, match=r"mean=.* has 3 values, the images have 1 channels"):
        normalize(jnp.zeros((1, 2, 2, 1), jnp.uint8), (0.1, 0.2, 0.3), (0.5,))


def test_targets_of_ids_and_of_multi_hot_rows():
    np.testing.assert_allclose(targets(jnp.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(
        targets(jnp.array([1]), 4, 0.1), [[0.025, 0.925, 0.025, 0.025]], atol=1e-6
    )
    hot = jnp.asarray([[1, 0, 1, 0]], jnp.uint8)
    out = targets(hot, 4, 0.1)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[0.925, 0.025, 0.925, 0.025]], atol=1e-6)


def test_mixup_takes_one_lambda_of_at_least_a_half_and_the_previous_example():
    images = jnp.arange(4.0).reshape(4, 1, 1, 1) + jnp.zeros((4, 2, 2, 3))
    rows = jnp.eye(4)
    weights = []
    for i in range(200):
        mixed, target = mixup(jax.random.key(i), images, rows, 0.5)
        weight = float(target[0, 0])
        weights.append(weight)
        wanted = weight * np.eye(4) + (1 - weight) * np.roll(np.eye(4), 1, axis=0)
        np.testing.assert_allclose(target, wanted, atol=1e-6)
        np.testing.assert_allclose(mixed[1], np.full((2, 2, 3), weight), atol=1e-6)
    # max(l, 1 - l) of Beta(1/2, 1/2), the arcsine law, has mean 1/2 + 1/pi.
    assert min(weights) >= 0.5
    assert abs(np.mean(weights) - (0.5 + 1 / np.pi)) < 0.03


def test_mixup_of_zero_changes_nothing():
    images, rows = jnp.ones((2, 1, 1, 3)), jnp.eye(2)
    mixed, target = mixup(jax.random.key(0), images, rows, 0.0)
    assert mixed is images
    assert target is rows


def test_mixup_does_not_depend_on_the_number_of_devices():
    images = jax.random.normal(jax.random.key(1), (16, 4, 4, 3))
    rows = jax.nn.one_hot(jnp.arange(16), 16)
    mix = jax.jit(functools.partial(mixup, alpha=0.2))
    alone = mix(jax.random.key(3), images, rows)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread = NamedSharding(mesh, P("data"))
    together = mix(jax.random.key(3), jax.device_put(images, spread), jax.device_put(rows, spread))
    assert len(together[0].sharding.device_set) == 8
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
