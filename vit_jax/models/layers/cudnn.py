# SPDX-License-Identifier: Apache-2.0
"""cuDNN's flash attention, for any number of tokens."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def flash(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B h N d"]:
    """Attend with scale d**-0.5 and no [N, M] array in memory.

    jax has cuDNN train on even lengths only, so an odd one (197 with a class token, one query of a
    pooling) gains one token: a key that no query sees, a query whose output is cut off. Even
    lengths are left as they are, without a mask.

    Args:
        q, k, v: queries, keys and values, in half precision.
        implementation: jax's name for the kernel; "xla" computes the same on any device.
    """
    batch, queries, keys, scale = q.shape[0], q.shape[2], k.shape[2], q.shape[-1] ** -0.5
    q, k, v = (_even(x.swapaxes(1, 2)) for x in (q, k, v))  # cuDNN takes [B, N, h, d]
    # No lengths of queries: an added one attends to all real keys, so that its softmax is finite.
    lengths = None if keys % 2 == 0 else jnp.full(batch, keys, jnp.int32)
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=scale,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    return out[:, :queries].swapaxes(1, 2)


def _even(x: Float[Array, "B N h d"]) -> Float[Array, "B E h d"]:
    """Append a token of zeros to an odd number of them."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) if x.shape[1] % 2 else x
