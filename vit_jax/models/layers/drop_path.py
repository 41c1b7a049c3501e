# SPDX-License-Identifier: Apache-2.0
"""Stochastic depth (arXiv:1603.09382): drop a residual branch, per example."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class DropPathRule(enum.StrEnum):
    """How the rate runs over the depth."""

    LINEAR = "linear"  # 0 in the first block, the full rate in the last
    CONSTANT = "constant"  # the full rate in every block (CaiT, official DeiT III)


def drop_path_rates(rate: float, depth: int, rule: DropPathRule) -> np.ndarray:
    """Return the rate of each block, [L] float32."""
    low = 0.0 if rule is DropPathRule.LINEAR else rate
    return np.linspace(low, rate, depth, dtype=np.float32)


def drop_path(
    x: Float[Array, "B *rest"], rate: float | Float[Array, ""], key: jax.Array
) -> Float[Array, "B *rest"]:
    """Zero the branch of a share `rate` of the examples and scale up the others by 1/(1-rate)."""
    keep = 1.0 - rate
    mask = jax.random.bernoulli(key, keep, (x.shape[0], *[1] * (x.ndim - 1)))
    return jnp.where(mask, (x.astype(jnp.float32) / keep).astype(x.dtype), jnp.zeros_like(x))
