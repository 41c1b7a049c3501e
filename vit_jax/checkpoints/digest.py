# SPDX-License-Identifier: Apache-2.0
"""One uint32 per leaf that tells whether a restored array equals the saved one, bit for bit.

A checksum against accidents (bit rot, torn writes), not against tampering. It depends on values
alone: a state saved on 8 devices and read on 1 has the same digests.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, UInt32

from vit_jax import trees


def _words(x: Array) -> UInt32[Array, "*shape"]:
    """View an array as unsigned words, 64-bit elements as two of them."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    bits = min(x.dtype.itemsize * 8, 32)
    return lax.bitcast_convert_type(x, f"uint{bits}").astype(jnp.uint32)


@jax.jit
def _digest(x: Array) -> tuple[Array, Array]:
    """Return the digest, and whether every number is finite: one pass over the array."""
    words = _words(x)
    # Row-major position, by axis: a reshape to one axis would gather a sharded array.
    index = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = math.prod(words.shape[axis + 1 :]) % 2**32
        index += lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride)
    # An odd weight has an inverse modulo 2**32, so a change of one element is always seen.
    finite = jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.asarray(True)
    return jnp.sum(words * (2 * index + 1), dtype=jnp.uint32), finite


def digests(tree: trees.PyTree) -> dict[str, int]:
    """Compute every leaf's digest, by leaf name.

    The sum over words of `word * (2 * i + 1)` modulo 2**32, i being the word's row-major index in
    the global array. Every process of a run must call it, and gets the same numbers.
    """
    return examine(tree)[0]


def examine(tree: trees.PyTree) -> tuple[dict[str, int], list[str]]:
    """Return `digests`, and the names of the leaves that hold NaN or infinity."""
    # Leaf by leaf: leaves may live on different devices, and equal shapes compile once.
    on_device = {name: _digest(jnp.asarray(leaf)) for name, leaf in trees.named_leaves(tree)}
    found = jax.device_get(on_device).items()
    sums = {name: int(digest) for name, (digest, _) in found}
    return sums, [name for name, (_, finite) in found if not finite]
