# SPDX-License-Identifier: Apache-2.0
"""The mean gradient of a batch with equal bits on any number of devices, from two on.

A global batch is cut into V fixed shards (`mesh.reproducible`). Each shard's gradient is computed
by one program, whatever the layout, and the V gradients are added along one fixed binary tree:
first those of a device, neighbour to neighbour, then between devices, by exchanges of partners. A
sum of two numbers does not depend on their order, so that both partners have the same bits.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from vit_jax.devices import sharding
from vit_jax.devices.sharding import BATCH_AXES
from vit_jax.trees import PyTree

# (what it reads, a shard's rows, the shard's number) -> float32 arrays
OfShard = Callable[[PyTree, PyTree, jax.Array], PyTree]


def mean(of_shard: OfShard, read: PyTree, rows: PyTree, shards: int, step: jax.Array) -> PyTree:
    """Return the mean of what `of_shard` returns for each of the shards, whole on every device.

    Args:
        of_shard: pure; it reads rows [B / shards, ...].
        read: what each shard reads whole; it lies on the mesh by its names.
        rows: arrays [B, ...], which lie on the mesh as a batch does.
        shards: V, a power of two, and a multiple of the devices, two or more, that the batch is cut
            over.
        step: int32 scalar, at least 0.
    """
    mesh = jax.sharding.get_abstract_mesh()
    devices = sharding.batch_shards(mesh)
    cut = jax.tree.map(lambda where: where.spec, sharding.shardings(read, mesh))

    def on_device(read: PyTree, rows: PyTree, step: jax.Array) -> PyTree:
        index = jax.lax.axis_index(BATCH_AXES)
        whole = jax.tree.map(_whole, read, cut)
        total = _on_device(of_shard, shards // devices, whole, rows, step, index)
        return _exchanged(total, devices, index)

    specs = (cut, PartitionSpec(BATCH_AXES), PartitionSpec())
    total = jax.shard_map(
        on_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )(read, rows, step)
    return jax.tree.map(lambda x: x * (1 / shards), total)  # exact: a power of two


def _whole(x: jax.Array, cut: PartitionSpec) -> jax.Array:
    """Gather a parameter that is cut over devices."""
    for axis, names in enumerate(cut):
        for name in (names,) if isinstance(names, str) else names or ():
            x = jax.lax.all_gather(x, name, axis=axis, tiled=True)
    return x


def _on_device(
    of_shard: OfShard, own: int, read: PyTree, rows: PyTree, step: jax.Array, index: jax.Array
) -> PyTree:
    """Return the sum over a device's shards, neighbour to neighbour, one gradient at a time."""
    size = jax.tree.leaves(rows)[0].shape[0] // own

    def compute(i: jax.Array) -> PyTree:
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size), rows)
        return sharding.apart(step, of_shard, read, part, index * own + i)

    if own == 1:
        return compute(jnp.int32(0))
    # The sums of 1, 2, 4, ... shards that wait for their neighbour, as the digits of a counter.
    levels = own.bit_length() - 1
    waiting = jax.tree.map(
        lambda x: [jnp.zeros(x.shape, x.dtype)] * levels, jax.eval_shape(compute, jnp.int32(0))
    )

    def settle(count: int, waiting: PyTree, found: PyTree) -> tuple[PyTree, PyTree]:
        """Add the first `count` sums that wait, and let the new one wait, or return it at last."""
        tree = jax.tree.structure(found)
        sums, rest = jax.tree.leaves(found), tree.flatten_up_to(waiting)
        kept = []
        for x, left in zip(sums, rest, strict=True):
            for level in range(count):
                x = left[level] + x
            kept.append((x, [x if i == count else each for i, each in enumerate(left)]))
        return tree.unflatten([w for _, w in kept]), tree.unflatten([x for x, _ in kept])

    def body(i: jax.Array, carried: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        waiting, _ = carried
        ones = jnp.int32(0)  # how many sums wait below: the ones at the end of i in binary
        for level in range(levels):
            ones += ((i + 1) % (1 << (level + 1)) == 0).astype(jnp.int32)
        branches = [functools.partial(settle, count) for count in range(levels + 1)]
        return jax.lax.switch(ones, branches, waiting, compute(i))

    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute, 0))
    return jax.lax.fori_loop(0, own, body, (waiting, start))[1]


def _exchanged(total: PyTree, devices: int, index: jax.Array) -> PyTree:
    """Return the sum over devices along the tree, whole on each.

    Partners at distance 1, 2, 4, ... exchange halves of what they have, so that each ends with its
    share of the sum, and then these shares: as many bytes as an all-reduce over a ring.
    """
    flat, restore = ravel_pytree(total)
    length = flat.shape[0]
    flat = jnp.pad(flat, (0, -length % devices))
    distances = [1 << level for level in range(devices.bit_length() - 1)]
    for distance in distances:
        bit = (index // distance) % 2
        halves = flat.reshape(2, -1)
        given = jax.lax.dynamic_index_in_dim(halves, 1 - bit, keepdims=False)
        kept = jax.lax.dynamic_index_in_dim(halves, bit, keepdims=False)
        flat = kept + _from_partner(given, devices, distance)
    for distance in reversed(distances):
        bit = (index // distance) % 2
        other = _from_partner(flat, devices, distance)
        pair = jnp.stack([flat, other])
        flat = jnp.where(bit == 0, pair, pair[::-1]).reshape(-1)
    return restore(flat[:length])


def _from_partner(x: jax.Array, devices: int, distance: int) -> jax.Array:
    pairs = [(i, i ^ distance) for i in range(devices)]
    return jax.lax.ppermute(x, BATCH_AXES, pairs)
