# SPDX-License-Identifier: Apache-2.0
"""Gradients are summed in a wider dtype than a layer computes in only where a step says so."""

import jax.numpy as jnp

from vit_jax.models import reduction
from vit_jax.models.reduction import ReduceDType, is_wider


def test_only_a_step_that_sums_in_float32_is_wider_than_bfloat16() -> None:
    assert not is_wider(jnp.bfloat16)
    with reduction.summing_in(ReduceDType.FLOAT32):
        assert is_wider(jnp.bfloat16)
        assert not is_wider(jnp.float32)
        with reduction.summing_in(ReduceDType.BFLOAT16):
            assert not is_wider(jnp.bfloat16)
        assert is_wider(jnp.bfloat16)
    assert not is_wider(jnp.bfloat16)
