# SPDX-License-Identifier: Apache-2.0
"""The spread of the initial values, by the code that they are taken from."""

import jax
import numpy as np
import pytest

from vit_jax.models.layers.init import RULES, Init

KEY = jax.random.key(0)
SHAPE = (64, 192)  # a fused projection of three


def _xavier(fan_in: int, fan_out: int) -> float:
    return (2 / (fan_in + fan_out)) ** 0.5  # the standard deviation of U(+-sqrt(6 / sum))


@pytest.mark.parametrize(
    "init, linear, qkv",
    [
        (Init.JAX, _xavier(64, 192), _xavier(64, 64)),
        (Init.TIMM, 0.02, 0.02),
        (Init.MOCO, _xavier(64, 192), _xavier(64, 64)),
    ],
)
def test_projections_have_the_spread_of_their_code(init: Init, linear: float, qkv: float) -> None:
    rules = RULES[init]
    assert np.std(rules.linear(KEY, SHAPE)) == pytest.approx(linear, rel=0.03)
    assert np.std(rules.qkv(3)(KEY, SHAPE)) == pytest.approx(qkv, rel=0.03)


def test_pytorchs_normal_is_not_cut_at_two_sigma() -> None:
    assert np.abs(RULES[Init.TIMM].linear(KEY, SHAPE)).max() > 0.06


def test_patches_of_pytorch_are_uniform_by_their_fan_in() -> None:
    rules, fan_in = RULES[Init.TIMM], 4 * 4 * 3
    kernel = rules.patch_kernel(KEY, (4, 4, 3, 32))
    assert 0.95 * fan_in**-0.5 < np.abs(kernel).max() <= fan_in**-0.5
    assert np.abs(rules.patch_bias(fan_in)(KEY, (256,))).max() <= fan_in**-0.5
    assert not RULES[Init.JAX].patch_bias(fan_in)(KEY, (8,)).any()
