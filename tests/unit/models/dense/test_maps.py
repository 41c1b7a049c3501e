# SPDX-License-Identifier: Apache-2.0
"""Maps of another size, against PyTorch's rules worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.cost.flops import count
from vit_jax.models.dense.maps import corners, half_pixels, resize_map


def test_corners_stay_in_place() -> None:
    ramp = np.array([0.0, 3.0, 6.0])
    np.testing.assert_allclose(corners(3, 7) @ ramp, np.arange(7), atol=1e-12)
    # With half-pixel centres the ends are repeated: (0.5 i + 0.5) * 3 / 6 - 0.5.
    wanted = np.clip((np.arange(6) + 0.5) / 2 - 0.5, 0, 2) * 3
    np.testing.assert_allclose(half_pixels(3, 6) @ ramp, wanted, atol=1e-12)
    np.testing.assert_array_equal(corners(3, 1) @ ramp, [0.0])
    np.testing.assert_array_equal(corners(1, 4), np.ones((4, 1)))


def test_maps_are_resized_along_both_axes() -> None:
    x = np.arange(2 * 3 * 4 * 2, dtype=np.float32).reshape(2, 3, 4, 2)
    found = resize_map(jnp.asarray(x), (5, 4), corners)
    np.testing.assert_allclose(found, np.einsum("pi,bijc->bpjc", corners(3, 5), x), rtol=1e-6)
    half = resize_map(jnp.asarray(x, jnp.bfloat16), (3, 8))
    assert half.dtype == jnp.bfloat16
    assert half.shape == (2, 3, 8, 2)


def test_flops_leave_it_out() -> None:
    image = jax.ShapeDtypeStruct((1, 8, 8, 4), jnp.float32)
    assert count(lambda x: resize_map(x, (16, 16)), image) == 0
