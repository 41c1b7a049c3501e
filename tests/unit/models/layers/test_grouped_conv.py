# SPDX-License-Identifier: Apache-2.0
"""The forms of a convolution: what one device runs equals what another does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.devices import hardware
from vit_jax.models.conv.conv import Padding, kaiming_normal, max_pool


@pytest.mark.parametrize("backend, scatters", [("cpu", 0), ("gpu", 1)])
def test_max_pool_has_its_own_backward_pass_on_a_cpu(backend: str, scatters: int) -> None:
    gradient = jax.grad(lambda x: max_pool(x, Padding.SYMMETRIC).sum())
    with hardware.tracing_for(hardware.Target(backend)):
        program = str(jax.make_jaxpr(gradient)(jnp.ones((1, 5, 5, 2))))
    assert program.count("= select_and_scatter_add[") == scatters


def test_kaiming_normal_counts_what_an_input_reaches() -> None:
    kernel = kaiming_normal(groups=4)(jax.random.key(0), (3, 3, 16, 96))
    assert np.std(kernel) == pytest.approx((2 / (9 * 96 / 4)) ** 0.5, rel=0.02)
