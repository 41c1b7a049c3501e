# SPDX-License-Identifier: Apache-2.0
"""Flash attention, scale d**-0.5 and no [N, M] array in memory, for any number of tokens."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from vit_jax.devices.sharding import BATCH_AXES, fitted_spec

_LANES = 128  # the Pallas kernel reads tokens in multiples of it
_BLOCKS = (512, 384, 256, 128)  # tokens at a time: the largest that divides their number


def cudnn(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B h N d"]:
    """Attend by cuDNN, in half precision; `implementation="xla"` computes the same anywhere.

    jax's cuDNN trains on even lengths only, so an odd one (197 with a class token, one query of a
    pooling) gains one token: a key that no query sees, a query whose output is cut off. Even
    lengths pass unchanged, without a mask.
    """
    batch, queries, keys, scale = q.shape[0], q.shape[2], k.shape[2], q.shape[-1] ** -0.5
    q, k, v = (_padded(x.swapaxes(1, 2), 1, 2) for x in (q, k, v))  # to cuDNN's [B, N, h, d]
    # Queries have no lengths: an added one attends to all real keys, so that its softmax is finite.
    lengths = None if keys % 2 == 0 else jnp.full(batch, keys, jnp.int32)
    out = jax.nn.dot_product_attention(
        q, k, v, scale=scale, key_value_seq_lengths=lengths, implementation=implementation
    )
    return out[:, :queries].swapaxes(1, 2)


def pallas(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    interpret: bool = False,
) -> Float[Array, "B h N d"]:
    """Attend by JAX's Pallas kernel for TPUs (splash attention).

    XLA cannot split the kernel over devices: on a mesh each device computes the images and heads
    that it holds. `interpret` computes on any device, slowly.
    """
    attend = functools.partial(_splash, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return attend(q, k, v)
    spec: PartitionSpec = fitted_spec(q.shape, (BATCH_AXES, "tensor"), mesh)
    # The kernel does not declare the axes over which its result varies, which the check requires.
    split = jax.shard_map(attend, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return split(q, k, v)


def _splash(q: jax.Array, k: jax.Array, v: jax.Array, interpret: bool) -> jax.Array:
    # Not at the top: this import takes longer than that of the rest of a model.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    (_, heads, queries, width), keys = q.shape, k.shape[2]
    q, k, v = (_padded(x, 2, _LANES) for x in (q * width**-0.5, k, v))
    block_q, block_kv = (next(n for n in _BLOCKS if x.shape[2] % n == 0) for x in (q, k))
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


def _padded(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """Append zeros along an axis of [B, ?, ?, d] up to a whole multiple."""
    extra = -x.shape[axis] % multiple
    return jnp.pad(x, [(0, extra if i == axis else 0) for i in range(x.ndim)]) if extra else x
