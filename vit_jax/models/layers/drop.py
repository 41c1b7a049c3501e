# SPDX-License-Identifier: Apache-2.0
"""Dropout of single numbers, and stochastic depth, which drops a residual branch per example."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float


class Dropout(nn.Module):
    """Zero a share `rate` of the numbers in training and scale up the others (Srivastava 2014)."""

    rate: float
    deterministic: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        if self.deterministic or self.rate == 0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))


def dropout(x: Float[Array, "*lead D"], rate: float, key: jax.Array) -> Float[Array, "*lead D"]:
    """Zero a share `rate` < 1 (in steps of 1/65536) and scale up the others to keep the mean.

    It draws 16 random bits a number, half the work and the memory of `jax.random.bernoulli`'s 32:
    XLA holds the bits, not the mask, from the forward pass to the backward pass.
    """
    *lead, width = x.shape
    words = jax.random.bits(key, (*lead, -(-width // 2)), "uint32")
    bits = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*lead, -1)[..., :width]
    kept = max(round((1 - rate) * 2**16), 1)  # of the 2**16 values
    return jnp.where(bits <= jnp.uint16(kept - 1), x * (2**16 / kept), jnp.zeros_like(x))


class DropPathRule(enum.StrEnum):
    """How the rate of stochastic depth (arXiv:1603.09382) changes over the depth."""

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
