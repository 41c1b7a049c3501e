# SPDX-License-Identifier: Apache-2.0
"""Losses that compare every image of a batch with every text: CLIP's softmax, SigLIP's sigmoid.

arXiv:2103.00020 section 2.3 and arXiv:2303.15343 algorithm 1. No array has an element for every
pair. The texts go round the devices, and each device compares its own images with one block of
texts at a time. An image's sums stay on its device, a text's travel with it. The softmax's gradient
goes round once more and computes the logits again; the sigmoid's is summed on the way.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from vit_jax.devices.sharding import BATCH_AXES, auto_mesh, batch_shards
from vit_jax.trees import PyTree

_PAIRS = 2**22  # logits of a block at most: 16 MiB in float32


class Contrast(NamedTuple):
    """What a batch of pairs gives.

    Attributes:
        loss: in nats; the only one that has a gradient.
        image_to_text: share of the images whose best own caption is strictly better than every
            other caption of the batch. A tie counts as a miss: equal embeddings score nothing.
        text_to_image: the same share of the texts.
    """

    loss: Float[Array, ""]
    image_to_text: Float[Array, ""]
    text_to_image: Float[Array, ""]


def softmax_loss(
    image: Float[Array, "B E"],
    text: Float[Array, "B E"],
    scale: Float[Array, ""],
    ids: Int[Array, " B"] | None = None,
) -> Contrast:
    """Return the cross-entropy of each image against all texts and of each text against all images.

    Both are means over the batch, and the loss is the mean of the two. It is computed in float32.

    Args:
        image, text: embeddings of unit length of the global batch; row i of both is one pair.
        scale: factor of the logits, exp(logit_scale).
        ids: pairs of equal ids are each other's positives: a row's targets are the row of the
            equality matrix divided by its sum (UniCL, arXiv:2204.03610). None: all differ.
    """
    return _softmax(*_in_float32(image, text, scale), _ids(ids, image))


def sigmoid_loss(
    image: Float[Array, "B E"],
    text: Float[Array, "B E"],
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    ids: Int[Array, " B"] | None = None,
) -> Contrast:
    """Return the binary cross-entropy of every pair: summed over the texts, mean over the images.

    It is computed in float32.

    Args:
        image, text: embeddings of unit length of the global batch; row i of both is one pair.
        scale, bias: the logits are scale * image . text + bias; scale is exp(logit_scale).
        ids: pairs of equal ids are each other's positives. None: all differ.
    """
    return _sigmoid(*_in_float32(image, text, scale, bias), _ids(ids, image))


def passed_bytes(batch: int, width: int, shards: int, *, softmax: bool) -> int:
    """Count what a device sends to the next one in a step: for the loss and its gradient.

    The softmax sends the texts with the sums of its columns, then the texts with their gradients;
    the sigmoid sends the texts with both, once.
    """
    values = 3 * width + 7 if softmax else 2 * width + 3
    return 4 * batch * values if shards > 1 else 0


def _in_float32(*arrays: jax.Array) -> list[jax.Array]:
    return [x.astype(jnp.float32) for x in arrays]


def _ids(ids: jax.Array | None, image: jax.Array) -> jax.Array:
    return (jnp.arange(len(image)) if ids is None else ids).astype(jnp.int32)


class _Best(NamedTuple):
    """The largest logits of each row [n], or of each column, of positives and of all others."""

    positive: jax.Array
    negative: jax.Array

    @property
    def largest(self) -> jax.Array:
        return jnp.maximum(self.positive, self.negative)

    def with_block(self, logits: jax.Array, same: jax.Array, axis: int) -> "_Best":
        """Include one block of logits [n m]; `axis` is the one over which they are compared."""
        positive = jnp.where(same, logits, -jnp.inf).max(axis)
        negative = jnp.where(same, -jnp.inf, logits).max(axis)
        return _Best(jnp.maximum(self.positive, positive), jnp.maximum(self.negative, negative))

    def accuracy(self) -> jax.Array:
        return (self.positive > self.negative).mean(dtype=jnp.float32)


def _no_best(like: jax.Array) -> _Best:
    lowest = jnp.full(like.shape[0], -jnp.inf, jnp.float32)
    return _Best(lowest, lowest)


class _Total(NamedTuple):
    """Sum of exp(logit - best.largest) of each row [n], or of each column.

    It is scaled anew as the largest logit grows (online softmax, arXiv:1805.02867).
    """

    best: _Best
    powers: jax.Array

    def with_block(self, logits: jax.Array, same: jax.Array, axis: int) -> "_Total":
        best = self.best.with_block(logits, same, axis)
        powers = jnp.exp(logits - jnp.expand_dims(best.largest, axis)).sum(axis)
        return _Total(best, self.powers * jnp.exp(self.best.largest - best.largest) + powers)


@jax.custom_vjp
def _softmax(image: jax.Array, text: jax.Array, scale: jax.Array, ids: jax.Array) -> Contrast:
    return _softmax_forward(image, text, scale, ids)[0]


def _softmax_forward(
    image: jax.Array, text: jax.Array, scale: jax.Array, ids: jax.Array
) -> tuple[Contrast, tuple[Any, ...]]:
    zeros = jnp.zeros(ids.shape, jnp.float32)
    none = _Total(_no_best(ids), zeros)
    (rows, matched, count), columns = _meet(
        _softmax_block, (scale,), (image, ids), (none, zeros, zeros), (text, ids), none
    )
    # Rows and columns have the same targets, as equal ids have equal counts. The difference of two
    # large logits comes first: it is exact where the positive is the largest.
    by_row = rows.best.largest - matched / count + jnp.log(rows.powers)
    by_column = columns.best.largest - matched / count + jnp.log(columns.powers)
    contrast = Contrast(
        (by_row.mean() + by_column.mean()) / 2, rows.best.accuracy(), columns.best.accuracy()
    )
    kept = [(total.best.largest, 1 / total.powers) for total in (rows, columns)]
    return contrast, (image, text, scale, ids, *kept, 2 / count)


def _softmax_block(
    scalars: PyTree, rows: PyTree, row_sums: PyTree, columns: PyTree, column_sums: PyTree
) -> tuple[PyTree, PyTree]:
    (image, image_ids), (text, text_ids) = rows, columns
    total, matched, count = row_sums
    logits = scalars[0] * _matmul(image, text.T)
    same = image_ids[:, None] == text_ids[None]
    matched = matched + jnp.where(same, logits, 0).sum(1)
    count = count + same.sum(1, dtype=jnp.float32)
    row_sums = total.with_block(logits, same, 1), matched, count
    return row_sums, column_sums.with_block(logits, same, 0)


def _softmax_backward(kept: tuple[Any, ...], cotangent: Contrast) -> tuple[jax.Array | None, ...]:
    image, text, scale, ids, row_stats, column_stats, share = kept
    none = jnp.zeros_like(image)
    dimage, dtext = _meet(
        _softmax_gradients,
        (scale,),
        (image, ids, *row_stats, share),
        none,
        (text, ids, *column_stats),
        none,
    )
    factor = cotangent.loss / (2 * len(ids))
    return factor * scale * dimage, factor * scale * dtext, factor * (image * dimage).sum(), None


def _softmax_gradients(
    scalars: PyTree, rows: PyTree, dimage: jax.Array, columns: PyTree, dtext: jax.Array
) -> tuple[jax.Array, jax.Array]:
    image, image_ids, row_best, row_inverse, share = rows
    text, text_ids, column_best, column_inverse = columns
    logits = scalars[0] * _matmul(image, text.T)
    same = image_ids[:, None] == text_ids[None]
    dlogits = (
        jnp.exp(logits - row_best[:, None]) * row_inverse[:, None]
        + jnp.exp(logits - column_best[None]) * column_inverse[None]
        - jnp.where(same, share[:, None], 0)
    )
    return dimage + _matmul(dlogits, text), dtext + _matmul(dlogits.T, image)


_softmax.defvjp(_softmax_forward, _softmax_backward)


@jax.custom_vjp
def _sigmoid(
    image: jax.Array, text: jax.Array, scale: jax.Array, bias: jax.Array, ids: jax.Array
) -> Contrast:
    return _sigmoid_forward(image, text, scale, bias, ids)[0]


def _sigmoid_forward(
    image: jax.Array, text: jax.Array, scale: jax.Array, bias: jax.Array, ids: jax.Array
) -> tuple[Contrast, list[jax.Array]]:
    """Go round once for both: a pair's gradient depends on its own logit alone."""
    best, zeros, none = _no_best(ids), jnp.zeros(ids.shape, jnp.float32), jnp.zeros_like(image)
    (rows, losses, dbias, dimage), (columns, dtext) = _meet(
        _sigmoid_block,
        (scale, bias),
        (image, ids),
        (best, zeros, zeros, none),
        (text, ids),
        (best, none),
    )
    contrast = Contrast(losses.mean(), rows.accuracy(), columns.accuracy())
    sums = scale * dimage, scale * dtext, (image * dimage).sum(), dbias.sum()
    return contrast, [x / len(ids) for x in sums]


def _sigmoid_block(
    scalars: PyTree, rows: PyTree, row_sums: PyTree, columns: PyTree, column_sums: PyTree
) -> tuple[PyTree, PyTree]:
    (image, image_ids), (text, text_ids) = rows, columns
    (scale, bias), (best, losses, dbias, dimage) = scalars, row_sums
    logits = scale * _matmul(image, text.T) + bias
    same = image_ids[:, None] == text_ids[None]
    losses = losses - jax.nn.log_sigmoid(jnp.where(same, logits, -logits)).sum(1)
    dlogits = jnp.where(same, -jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits))
    dbias, dimage = dbias + dlogits.sum(1), dimage + _matmul(dlogits, text)
    column_best, dtext = column_sums
    column_sums = column_best.with_block(logits, same, 0), dtext + _matmul(dlogits.T, image)
    return (best.with_block(logits, same, 1), losses, dbias, dimage), column_sums


def _sigmoid_backward(
    gradients: list[jax.Array], cotangent: Contrast
) -> tuple[jax.Array | None, ...]:
    return *(cotangent.loss * x for x in gradients), None


_sigmoid.defvjp(_sigmoid_forward, _sigmoid_backward)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    # By default TPUs round float32 to bfloat16 and GPUs to TF32, and logits reach 100.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


# (scalars, rows, sums of rows, columns, sums of columns) -> both sums with one block more
_Block = Callable[[PyTree, PyTree, PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]


def _meet(
    block: _Block,
    scalars: PyTree,
    rows: PyTree,
    row_sums: PyTree,
    columns: PyTree,
    column_sums: PyTree,
) -> tuple[PyTree, PyTree]:
    """Return the sums over every row with every column, of whatever `block` adds to them.

    Rows and columns are pytrees of arrays [B, ...] that lie on the mesh as a batch does.
    """
    mesh = auto_mesh()
    shards = 1 if mesh.empty else batch_shards(mesh)
    if jax.tree.leaves(rows)[0].shape[0] % shards:
        shards = 1
    meet = functools.partial(_go_round, block, shards)
    if shards > 1:
        split = PartitionSpec(BATCH_AXES)
        meet = jax.shard_map(
            meet,
            mesh=mesh,
            in_specs=(PartitionSpec(), *[split] * 4),
            out_specs=(split, split),
        )
    return meet(scalars, rows, row_sums, columns, column_sums)


def _go_round(
    block: _Block,
    shards: int,
    scalars: PyTree,
    rows: PyTree,
    row_sums: PyTree,
    columns: PyTree,
    column_sums: PyTree,
) -> tuple[PyTree, PyTree]:
    """Meet the columns of all devices, one device's after the other; on each device's own rows."""
    own = functools.partial(_meet_own, block, scalars, rows)
    if shards == 1:
        return own(row_sums, columns, column_sums)

    def step(carry: PyTree, _: None) -> tuple[PyTree, None]:
        row_sums, columns, column_sums = carry
        row_sums, column_sums = own(row_sums, columns, column_sums)
        columns, column_sums = _to_next((columns, column_sums), shards)
        return (row_sums, columns, column_sums), None

    # As many steps as devices: the last brings the columns' sums home.
    start = (row_sums, columns, column_sums)
    (row_sums, _, column_sums), _ = jax.lax.scan(step, start, length=shards)
    return row_sums, column_sums


def _to_next(columns: PyTree, shards: int) -> PyTree:
    """Send each device's columns to the next one; vectors as one message, to wait for one."""
    leaves, structure = jax.tree.flatten(columns)
    bits = jnp.stack([_bits(x, jnp.int32) for x in leaves if x.ndim == 1])
    pairs = [(i, (i + 1) % shards) for i in range(shards)]
    bits, *arrays = jax.lax.ppermute((bits, *[x for x in leaves if x.ndim > 1]), BATCH_AXES, pairs)
    vectors, others = iter(bits), iter(arrays)
    moved = [_bits(next(vectors), x.dtype) if x.ndim == 1 else next(others) for x in leaves]
    return jax.tree.unflatten(structure, moved)


def _bits(x: jax.Array, dtype: Any) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, dtype)


def _meet_own(
    block: _Block,
    scalars: PyTree,
    rows: PyTree,
    row_sums: PyTree,
    columns: PyTree,
    column_sums: PyTree,
) -> tuple[PyTree, PyTree]:
    """Meet the columns that this device holds, in blocks of equal size.

    More than 2,048 of them should have a divisor near 2**22 / count; a prime number goes one by
    one.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    most = max(min(count, _PAIRS // count), 1)
    size = next(n for n in range(most, 0, -1) if count % n == 0)

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(count // size, size, *x.shape[1:])

    def step(row_sums: PyTree, at: PyTree) -> tuple[PyTree, PyTree]:
        return block(scalars, rows, row_sums, *at)

    row_sums, column_sums = jax.lax.scan(step, row_sums, jax.tree.map(cut, (columns, column_sums)))
    return row_sums, jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), column_sums)
