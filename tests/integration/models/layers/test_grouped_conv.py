# SPDX-License-Identifier: Apache-2.0
"""The forms of a convolution: what one device runs equals what another does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from vit_jax.devices import hardware, sharding
from vit_jax.models.conv.conv import conv2d


def plain(x: jax.Array, kernel: jax.Array, stride: int, groups: int) -> jax.Array:
    side = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        ((side, side), (side, side)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size, groups", [(1, 1), (3, 1), (3, 3), (1, 3), (7, 1)])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_equals_one_convolution(size: int, groups: int, stride: int, backend: str) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 7, 10, 6)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(size, size, 6 // groups, 9)), jnp.float32)
    with hardware.tracing_for(hardware.Target(backend)):
        y = conv2d(x, kernel, stride=stride, groups=groups)
    expected = plain(x, kernel, stride, groups)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_every_device_convolves_its_own_images_elsewhere_than_on_a_cpu() -> None:
    mesh = sharding.make_mesh(sharding.MeshConfig(data=4, fsdp=2))
    x = jax.random.normal(jax.random.key(0), (16, 8, 8, 16))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 4, 16))

    def gradient(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, k: (conv2d(x, k, groups=4) ** 2).sum(), (0, 1))(x, kernel)

    expected = gradient(x, kernel)
    where = (sharding.batch_sharding(mesh), jax.sharding.NamedSharding(mesh, PartitionSpec()))
    with hardware.tracing_for(hardware.Target("gpu")), jax.set_mesh(mesh):
        compiled = jax.jit(gradient, in_shardings=where).lower(x, kernel).compile()
    assert "all-gather" not in compiled.as_text()  # of images: the kernel is on every device
    found = compiled(*jax.device_put((x, kernel), where))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
