# SPDX-License-Identifier: Apache-2.0
"""FlexiViT's kernels and positions against the loaders' float64 and jax.image; maps by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.cost.flops import count
from vit_jax.models.layers import posemb
from vit_jax.models.resample import (
    antialiased,
    bilinear,
    corners,
    pseudo_inverse,
    resize_map,
    resized,
)
from vit_jax.weights.resize import resize_patch

SIDES = (8, 10, 12, 15, 16, 20, 24, 30, 32, 40, 48)  # published, at 240 pixels, and the kernel's


def test_kernels_are_the_loaders() -> None:
    kernel = np.random.default_rng(0).normal(size=(32, 32, 1, 2)).astype(np.float32)
    for side in SIDES:
        new = (side, 60 - side)
        expected = resize_patch(kernel, new, bilinear)
        out = resized(jnp.asarray(kernel), new, pseudo_inverse)
        assert out.dtype == jnp.float32
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(out / scale, expected / scale, atol=5e-6, rtol=0)


def test_a_kernel_of_the_same_size_stays() -> None:
    np.testing.assert_allclose(pseudo_inverse(32, 32), np.eye(32), atol=1e-12)


def test_the_gradient_is_that_of_the_linear_map() -> None:
    rng = np.random.default_rng(0)
    kernel, given = rng.normal(size=(8, 8, 1, 3)), rng.normal(size=(6, 12, 1, 3))

    def loss(kernel: jax.Array) -> jax.Array:
        return (resized(kernel, (6, 12), pseudo_inverse) * given).sum()

    found = jax.grad(loss)(jnp.asarray(kernel, jnp.float32))
    rows, columns = pseudo_inverse(8, 6), pseudo_inverse(8, 12)
    expected = np.einsum("pi,qj,pqcd->ijcd", rows, columns, given)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("new", [(5, 6), (7, 12), (30, 30)])
def test_positions_are_jax_images_linear(new: tuple[int, int]) -> None:
    table = np.random.default_rng(0).normal(size=(1, 1 + 49, 3)).astype(np.float32)
    out = posemb.resample(table, 1, (7, 7), new, linear=True)
    expected = jax.image.resize(table[:, 1:].reshape(7, 7, 3), (*new, 3), "linear")
    np.testing.assert_array_equal(out[:, :1], table[:, :1])
    np.testing.assert_allclose(out[0, 1:].reshape(*new, 3), expected, atol=2e-6)


def test_only_a_shrinking_grid_is_antialiased() -> None:
    np.testing.assert_allclose(antialiased(7, 30), bilinear(7, 30), atol=1e-12)
    assert np.abs(antialiased(7, 5) - bilinear(7, 5)).max() > 0.1


def test_corners_stay_in_place() -> None:
    ramp = np.array([0.0, 3.0, 6.0])
    np.testing.assert_allclose(corners(3, 7) @ ramp, np.arange(7), atol=1e-12)
    # With half-pixel centres the ends are repeated: (0.5 i + 0.5) * 3 / 6 - 0.5.
    wanted = np.clip((np.arange(6) + 0.5) / 2 - 0.5, 0, 2) * 3
    np.testing.assert_allclose(bilinear(3, 6) @ ramp, wanted, atol=1e-12)
    np.testing.assert_array_equal(corners(3, 1) @ ramp, [0.0])
    np.testing.assert_array_equal(corners(1, 4), np.ones((4, 1)))


def test_maps_are_resized_along_both_axes() -> None:
    x = np.arange(2 * 3 * 4 * 2, dtype=np.float32).reshape(2, 3, 4, 2)
    found = resize_map(jnp.asarray(x), (5, 4), corners)
    np.testing.assert_allclose(found, np.einsum("pi,bijc->bpjc", corners(3, 5), x), rtol=1e-6)
    half = resize_map(jnp.asarray(x, jnp.bfloat16), (3, 8))
    assert half.dtype == jnp.bfloat16
    assert half.shape == (2, 3, 8, 2)


def test_flops_leave_out_the_resize_of_maps() -> None:
    image = jax.ShapeDtypeStruct((1, 8, 8, 4), jnp.float32)
    assert count(lambda x: resize_map(x, (16, 16)), image) == 0
