# SPDX-License-Identifier: Apache-2.0
"""The forms of a convolution: what one device runs equals what another does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.devices import hardware
from vit_jax.models.conv.conv import Padding, Pads, conv2d, kaiming_normal, max_pool
from vit_jax.models.layers.dense import ReduceDType, for_this_machine, summing_in


@pytest.mark.parametrize("backend, scatters", [("cpu", 0), ("gpu", 1)])
def test_max_pool_has_its_own_backward_pass_on_a_cpu(backend: str, scatters: int) -> None:
    gradient = jax.grad(lambda x: max_pool(x, Padding.SYMMETRIC).sum())
    with hardware.tracing_for(hardware.Target(backend)):
        program = str(jax.make_jaxpr(gradient)(jnp.ones((1, 5, 5, 2))))
    assert program.count("= select_and_scatter_add[") == scatters


def test_kaiming_normal_counts_what_an_input_reaches() -> None:
    kernel = kaiming_normal(groups=4)(jax.random.key(0), (3, 3, 16, 96))
    assert np.std(kernel) == pytest.approx((2 / (9 * 96 / 4)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("pads", [((3, 3), (3, 3)), ((1, 2), (0, 3))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cpus_step_convolves_each_channel_alone_as_xla_does(pads: Pads, dtype: str) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2, 9, 8, 5), dtype)
    kernel = jax.random.normal(keys[1], (7, 7, 1, 5), dtype)

    def ours(x: jax.Array, kernel: jax.Array) -> jax.Array:
        with hardware.tracing_for(hardware.Target("cpu")), summing_in(ReduceDType.FLOAT32):
            return conv2d(x, kernel, groups=5, pads=pads)

    def xlas(x: jax.Array, kernel: jax.Array) -> jax.Array:
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), pads, dimension_numbers=names, feature_group_count=5
        )

    assert "conv_general_dilated" not in str(jax.make_jaxpr(ours)(x, kernel))
    y, pull = jax.vjp(ours, x, kernel)
    want, pull_xla = jax.vjp(xlas, x.astype("float32"), kernel.astype("float32"))
    dy = jax.random.normal(keys[2], y.shape, dtype)
    found, wanted = (y, *pull(dy)), (want, *pull_xla(dy.astype("float32")))
    for got, expected in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (dtype, expected.shape)
        tolerance = 1e-4 if dtype == "float32" else 0.02 * float(jnp.abs(expected).max())
        np.testing.assert_allclose(got.astype("float32"), expected, atol=tolerance)


def test_so_does_a_pass_of_this_machine_on_one_device_and_no_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_a_loop() -> bool:
        with hardware.tracing_for(hardware.Target("cpu")):
            program = jax.make_jaxpr(lambda x: conv2d(x, jnp.ones((7, 7, 1, 5)), groups=5))
            return "conv_general_dilated" not in str(program(jnp.ones((2, 9, 8, 5))))

    assert not is_a_loop()
    with for_this_machine():
        monkeypatch.setattr(jax, "device_count", lambda: 1)
        assert is_a_loop()
        monkeypatch.setattr(jax, "device_count", lambda: 2)
        assert not is_a_loop()
