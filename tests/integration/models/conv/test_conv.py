# SPDX-License-Identifier: Apache-2.0
"""Weight standardisation, the borders of convolution and max-pool, and channel rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.conv.conv import Conv, Padding, WeightStd, max_pool
from vit_jax.models.conv.resnet import bottleneck, round_channels
from vit_jax.models.layers import dense


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_weight_standardisation_is_its_definition(scale: float) -> None:
    kernel = np.random.default_rng(0).normal(scale, scale, size=(3, 3, 4, 6)).astype(np.float32)
    centred = kernel - kernel.mean((0, 1, 2))
    std = kernel.astype(np.float64).std((0, 1, 2))
    within = WeightStd(1e-8)(jnp.asarray(kernel))
    outside = WeightStd(1e-5, outside=True)(jnp.asarray(kernel))
    np.testing.assert_allclose(within, centred / np.sqrt(std**2 + 1e-8), rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(outside, centred / (std + 1e-5), rtol=2e-3, atol=1e-5)
    if scale == 1e-4:  # where timm's eps takes away 30 %, and vision_transformer's 10 %
        assert np.std(within) == pytest.approx(2**-0.5, rel=0.05)
        assert np.std(outside) == pytest.approx(1 / 1.1, rel=0.05)


def test_gradient_reaches_the_raw_kernel() -> None:
    # Standardisation makes the output blind to the kernel's scale and shift.
    kernel = jax.random.normal(jax.random.key(0), (3, 3, 4, 6))
    other = jax.random.normal(jax.random.key(1), kernel.shape)
    gradient = jax.grad(lambda k: (WeightStd(1e-10)(k) * other).sum())(kernel)
    assert float(jnp.abs(gradient).max()) > 0.1
    np.testing.assert_allclose(gradient.sum((0, 1, 2)), np.zeros(6), atol=1e-5)
    np.testing.assert_allclose((gradient * kernel).sum((0, 1, 2)), np.zeros(6), atol=1e-4)


def convolve(image: np.ndarray, padding: Padding, size: int, stride: int) -> np.ndarray:
    """Sum every window: a kernel of ones, not standardised."""
    ones = jax.nn.initializers.ones
    conv = Conv(1, size, jnp.float32, stride, padding=padding, kernel_init=ones)
    out, _ = conv.init_with_output(jax.random.key(0), jnp.asarray(image))
    return np.asarray(out)[0, :, :, 0]


def test_borders_of_a_convolution() -> None:
    image = np.arange(1.0, 5)[None, :, None, None].astype(np.float32)  # one column: 1 2 3 4
    # Windows of three at stride two: (1 2 3), (3 4 -) and (- 1 2), (2 3 4).
    np.testing.assert_array_equal(convolve(image, Padding.SAME, 3, 2)[:, 0], [6, 7])
    np.testing.assert_array_equal(convolve(image, Padding.SYMMETRIC, 3, 2)[:, 0], [3, 9])
    np.testing.assert_array_equal(convolve(image, Padding.FIXED, 3, 2)[:, 0], [3, 9])
    for padding in Padding:
        np.testing.assert_array_equal(convolve(image, padding, 3, 1)[:, 0], [3, 6, 9, 7])
        np.testing.assert_array_equal(convolve(image, padding, 1, 2)[:, 0], [1, 3])
        assert convolve(image[:, :3], padding, 7, 2).shape == (2, 1)


def test_borders_of_the_max_pool() -> None:
    image = -jnp.arange(1.0, 5)[None, :, None, None]  # -1 -2 -3 -4: a zero border would win
    expected = {Padding.SAME: [-1, -3], Padding.SYMMETRIC: [-1, -2], Padding.FIXED: [0, 0]}
    for padding, values in expected.items():
        np.testing.assert_array_equal(max_pool(image, padding)[0, :, 0, 0], values)
    # Inside, windows see no border.
    wide = jnp.broadcast_to(-jnp.arange(1.0, 8)[None, :, None, None], (1, 7, 7, 1))
    np.testing.assert_array_equal(max_pool(wide, Padding.FIXED)[0, 1:3, 1, 0], [-2, -4])


@pytest.mark.parametrize("padding", Padding)
def test_a_pass_of_this_machine_pools_without_windows(padding: Padding) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 9, 12, 3))
    pool = functools.partial(max_pool, padding=padding)
    with dense.for_this_machine():
        found, program = jax.jit(pool)(x), str(jax.make_jaxpr(lambda x: pool(x))(x))
        gradient = jax.grad(lambda x: pool(x).sum())(jnp.zeros_like(x))
    np.testing.assert_array_equal(found, pool(x))
    np.testing.assert_array_equal(gradient, jax.grad(lambda x: pool(x).sum())(jnp.zeros_like(x)))
    assert "reduce_window" not in program
    assert "reduce_window" in str(jax.make_jaxpr(lambda x: pool(x))(x))


def test_channels_are_rounded_as_in_timm() -> None:
    given = [1, 8, 11, 12, 18, 19, 44, 100, 256]
    assert [round_channels(n) for n in given] == [8, 8, 16, 16, 24, 24, 48, 104, 256]
    assert [bottleneck(n) for n in (8, 40, 48, 256, 2048)] == [8, 16, 16, 64, 512]
