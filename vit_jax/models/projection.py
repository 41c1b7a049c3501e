# SPDX-License-Identifier: Apache-2.0
"""The head of self-distillation: from features to scores over learned prototypes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.mlp import Gelu, gelu

_SMALL = 1e-12  # the least norm that is divided by, as in PyTorch's normalize


class ProjectionHead(nn.Module):
    """DINO's head (arXiv:2104.14294 section 3.1): an MLP, L2 normalisation, prototypes.

    Attributes:
        hidden_dim, bottleneck_dim: of the MLP's layers, and of its output.
        num_layers: of the MLP.
        num_prototypes: K.
        unit_prototypes: divide each prototype by its norm, as DINO's weight normalisation with its
            scale held at 1.
        dtype: of the computation; logits are float32.
    """

    hidden_dim: int
    bottleneck_dim: int
    num_layers: int
    num_prototypes: int
    unit_prototypes: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead K"]:
        normal = nn.initializers.normal(0.02)
        for layer in range(1, self.num_layers):
            x = gelu(Dense(self.hidden_dim, self.dtype, normal, name=f"fc{layer}")(x), Gelu.ERF)
        x = Dense(self.bottleneck_dim, self.dtype, normal, name=f"fc{self.num_layers}")(x)
        wide = x.astype(jnp.float32)
        norm = jnp.sqrt(jnp.square(wide).sum(axis=-1, keepdims=True) + _SMALL**2)
        start = _torch_linear if self.unit_prototypes else normal
        scores = _Prototypes(self.num_prototypes, start, self.unit_prototypes, name="prototypes")
        return scores(wide / norm)


class _Prototypes(nn.Module):
    """Dot products with K vectors, the columns of `kernel`, in float32."""

    num_prototypes: int
    kernel_init: Any
    unit: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead K"]:
        shape = (x.shape[-1], self.num_prototypes)
        kernel = jnp.asarray(self.param("kernel", self.kernel_init, shape, jnp.float32))
        if self.unit:
            kernel = kernel / jnp.sqrt(jnp.square(kernel).sum(axis=0, keepdims=True) + _SMALL**2)
        return (x.reshape(-1, shape[0]) @ kernel).reshape(*x.shape[:-1], shape[1])


def _torch_linear(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    # PyTorch's default for a linear layer, which DINO leaves as it is.
    limit = 1 / math.sqrt(shape[0])
    return jax.random.uniform(key, shape, dtype, -limit, limit)
