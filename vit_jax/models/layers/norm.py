# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation with the statistics in float32, and LayerScale."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


def layer_norm(epsilon: float, dtype: Any, name: str) -> nn.LayerNorm:
    """Create a LayerNorm that computes the variance in two passes.

    Flax's default E[x^2]-E[x]^2 loses digits where the variance is small against the mean.
    """
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, use_fast_variance=False, name=name)


class LayerScale(nn.Module):
    """Multiply every channel by a learned factor (CaiT, arXiv:2103.17239 section 2.1)."""

    init_value: float

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        init = nn.initializers.constant(self.init_value)
        gamma = self.param("gamma", init, (x.shape[-1],), jnp.float32)
        return x * gamma.astype(x.dtype)[None, None]
