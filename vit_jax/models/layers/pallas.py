# SPDX-License-Identifier: Apache-2.0
"""JAX's Pallas flash attention for TPUs (splash attention), for any number of tokens."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from vit_jax.sharding import BATCH_AXES, fitted_spec

_LANES = 128  # the kernel takes tokens in multiples of it
_BLOCKS = (512, 384, 256, 128)  # tokens at a time, as many as divide their number


def flash(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    interpret: bool = False,
) -> Float[Array, "B h N d"]:
    """Attend with scale d**-0.5 and no [N, M] array in memory.

    XLA cannot split the kernel over devices: on a mesh each computes the images and heads that it
    holds.

    Args:
        q, k, v: queries, keys and values.
        interpret: compute on any device, slowly.
    """
    attend = functools.partial(_flash, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return attend(q, k, v)
    spec: PartitionSpec = fitted_spec(q.shape, (BATCH_AXES, "tensor"), mesh)
    # The kernel does not say over which axes its result varies, which the check would ask for.
    split = jax.shard_map(attend, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return split(q, k, v)


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, interpret: bool) -> jax.Array:
    # Not at the top: its import takes longer than that of the rest of a model.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    (_, heads, queries, width), keys = q.shape, k.shape[2]
    q, k, v = (_padded(x) for x in (q * width**-0.5, k, v))
    block_q, block_kv = _block(q.shape[2]), _block(k.shape[2])
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([masks.FullMask((q.shape[2], k.shape[2]))] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block_q,
            block_kv=block_kv,
            block_q_dkv=block_q,
            block_kv_dkv=block_kv,
            block_q_dq=block_q,
            block_kv_dq=block_kv,
        ),
        interpret=interpret,
    )
    segments = None
    if keys % _LANES:  # an added key is of another segment; an added query attends to real keys
        real = (jnp.arange(k.shape[2]) < keys).astype(jnp.int32)
        segments = splash.SegmentIds(jnp.ones(q.shape[2], jnp.int32), real)
    images = jax.vmap(lambda q, k, v: jnp.asarray(kernel(q, k, v, segment_ids=segments)))
    return images(q, k, v)[:, :, :queries]


def _padded(x: Float[Array, "B h N d"]) -> Float[Array, "B h P d"]:
    """Append tokens of zeros up to a whole multiple of the kernel's lanes."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % _LANES), (0, 0)))


def _block(tokens: int) -> int:
    return next(block for block in _BLOCKS if tokens % block == 0)
