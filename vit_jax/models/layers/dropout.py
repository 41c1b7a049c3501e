# SPDX-License-Identifier: Apache-2.0
"""Dropout (Srivastava et al. 2014) of single numbers, by 16 random bits each."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


class Dropout(nn.Module):
    """Zero a share `rate` of the numbers in training and scale up the others, as `nn.Dropout`."""

    rate: float
    deterministic: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        if self.deterministic or self.rate == 0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))


def dropout(x: Float[Array, "*lead D"], rate: float, key: jax.Array) -> Float[Array, "*lead D"]:
    """Zero a share `rate` < 1, to 1/65536, and scale up the others so that the mean stays.

    Half the work and the memory of `jax.random.bernoulli`, which draws 32 bits a number: XLA holds
    the bits from the forward pass to the backward, not the mask.
    """
    *lead, width = x.shape
    words = jax.random.bits(key, (*lead, -(-width // 2)), "uint32")
    bits = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*lead, -1)[..., :width]
    kept = max(round((1 - rate) * 2**16), 1)  # of the 2**16 values
    return jnp.where(bits <= jnp.uint16(kept - 1), x * (2**16 / kept), jnp.zeros_like(x))
