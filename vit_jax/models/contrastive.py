# SPDX-License-Identifier: Apache-2.0
"""Losses that compare every image of a batch with every text: softmax (CLIP, arXiv:2103.00020,
section 2.3) and sigmoid (SigLIP, arXiv:2303.15343, algorithm 1).

No array has an element for every pair. The texts go round the devices, and each device compares its
own images with one block of texts at a time; the backward pass goes round once more and computes
the logits again. An image's sums stay on its device, a text's travel with it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from vit_jax.devices.sharding import BATCH_AXES, batch_shards

_PAIRS = 2**22  # logits of a block at most: 16 MiB in float32
Sums = Any  # a pytree of arrays whose first axis are images, or texts


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


def _in_float32(*arrays: jax.Array) -> list[jax.Array]:
    return [x.astype(jnp.float32) for x in arrays]


def _ids(ids: jax.Array | None, image: jax.Array) -> jax.Array:
    return jnp.arange(image.shape[0], dtype=jnp.int32) if ids is None else ids


class _Best(NamedTuple):
    """The largest logits of each row [n], or of each column, of positives and of all others."""

    positive: jax.Array
    negative: jax.Array

    @property
    def any(self) -> jax.Array:
        return jnp.maximum(self.positive, self.negative)

    def of(self, logits: jax.Array, same: jax.Array, axis: int) -> "_Best":
        """Look at one block [n m] more."""
        positive = jnp.where(same, logits, -jnp.inf).max(axis)
        negative = jnp.where(same, -jnp.inf, logits).max(axis)
        return _Best(jnp.maximum(self.positive, positive), jnp.maximum(self.negative, negative))

    def accuracy(self) -> jax.Array:
        return (self.positive > self.negative).mean(dtype=jnp.float32)


def _no_best(like: jax.Array) -> _Best:
    lowest = jnp.full(like.shape[0], -jnp.inf, jnp.float32)
    return _Best(lowest, lowest)


# A softmax's sum grows with the largest logit so far (online softmax, arXiv:1805.02867).


class _Total(NamedTuple):
    """Sum of exp(logit - best.any) of each row [n], or of each column."""

    best: _Best
    powers: jax.Array

    def of(self, logits: jax.Array, same: jax.Array, axis: int) -> "_Total":
        best = self.best.of(logits, same, axis)
        powers = jnp.exp(logits - jnp.expand_dims(best.any, axis)).sum(axis)
        return _Total(best, self.powers * jnp.exp(self.best.any - best.any) + powers)


class _Matched(NamedTuple):
    """Sum and number of each image's positive logits [n]."""

    logits: jax.Array
    count: jax.Array

    def of(self, logits: jax.Array, same: jax.Array) -> "_Matched":
        return _Matched(self.logits + jnp.where(same, logits, 0).sum(1), self.count + same.sum(1))


@jax.custom_vjp
def _softmax(image: jax.Array, text: jax.Array, scale: jax.Array, ids: jax.Array) -> Contrast:
    return _softmax_forward(image, text, scale, ids)[0]


def _softmax_forward(
    image: jax.Array, text: jax.Array, scale: jax.Array, ids: jax.Array
) -> tuple[Contrast, tuple[Any, ...]]:
    zeros = jnp.zeros(ids.shape, jnp.float32)
    none = _Total(_no_best(ids), zeros)
    matched = _Matched(zeros, jnp.zeros(ids.shape, jnp.int32))
    (rows, matched), columns = _meet(
        _softmax_block, (scale,), (image, ids), (none, matched), (text, ids), none
    )
    # Rows and columns have the same targets, as equal ids have equal counts. The difference of two
    # large logits comes first: it is exact where the positive is the largest.
    positive = matched.logits / matched.count
    by_row = rows.best.any - positive + jnp.log(rows.powers)
    by_column = columns.best.any - positive + jnp.log(columns.powers)
    contrast = Contrast(
        (by_row.mean() + by_column.mean()) / 2, rows.best.accuracy(), columns.best.accuracy()
    )
    kept = [(total.best.any, 1 / total.powers) for total in (rows, columns)]
    return contrast, (image, text, scale, ids, *kept, 2 / matched.count)


def _softmax_block(
    scalars: Sums, rows: Sums, row_sums: Sums, columns: Sums, column_sums: Sums
) -> tuple[Sums, Sums]:
    (image, image_ids), (text, text_ids) = rows, columns
    total, matched = row_sums
    logits = scalars[0] * _products(image, text)
    same = image_ids[:, None] == text_ids[None]
    row_sums = total.of(logits, same, 1), matched.of(logits, same)
    return row_sums, column_sums.of(logits, same, 0)


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
    scalars: Sums, rows: Sums, dimage: jax.Array, columns: Sums, dtext: jax.Array
) -> tuple[jax.Array, jax.Array]:
    image, image_ids, row_best, row_inverse, share = rows
    text, text_ids, column_best, column_inverse = columns
    logits = scalars[0] * _products(image, text)
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
) -> tuple[Contrast, tuple[jax.Array, ...]]:
    none, zeros = _no_best(ids), jnp.zeros(ids.shape, jnp.float32)
    (rows, losses), columns = _meet(
        _sigmoid_block, (scale, bias), (image, ids), (none, zeros), (text, ids), none
    )
    contrast = Contrast(losses.mean(), rows.accuracy(), columns.accuracy())
    return contrast, (image, text, scale, bias, ids)


def _sigmoid_block(
    scalars: Sums, rows: Sums, row_sums: Sums, columns: Sums, column_sums: Sums
) -> tuple[Sums, Sums]:
    (image, image_ids), (text, text_ids) = rows, columns
    best, losses = row_sums
    scale, bias = scalars
    logits = scale * _products(image, text) + bias
    same = image_ids[:, None] == text_ids[None]
    losses = losses - jax.nn.log_sigmoid(jnp.where(same, logits, -logits)).sum(1)
    return (best.of(logits, same, 1), losses), column_sums.of(logits, same, 0)


def _sigmoid_backward(
    kept: tuple[jax.Array, ...], cotangent: Contrast
) -> tuple[jax.Array | None, ...]:
    image, text, scale, bias, ids = kept
    none = jnp.zeros_like(image)
    (dimage, dbias), dtext = _meet(
        _sigmoid_gradients,
        (scale, bias),
        (image, ids),
        (none, jnp.zeros(ids.shape, jnp.float32)),
        (text, ids),
        none,
    )
    factor = cotangent.loss / len(ids)
    dscale, dbias = factor * (image * dimage).sum(), factor * dbias.sum()
    return factor * scale * dimage, factor * scale * dtext, dscale, dbias, None


def _sigmoid_gradients(
    scalars: Sums, rows: Sums, row_sums: Sums, columns: Sums, dtext: jax.Array
) -> tuple[Sums, jax.Array]:
    (image, image_ids), (text, text_ids) = rows, columns
    dimage, dbias = row_sums
    scale, bias = scalars
    logits = scale * _products(image, text) + bias
    same = image_ids[:, None] == text_ids[None]
    dlogits = jnp.where(same, -jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits))
    row_sums = dimage + _matmul(dlogits, text), dbias + dlogits.sum(1)
    return row_sums, dtext + _matmul(dlogits.T, image)


_sigmoid.defvjp(_sigmoid_forward, _sigmoid_backward)


def _products(image: Float[Array, "n E"], text: Float[Array, "m E"]) -> Float[Array, "n m"]:
    return _matmul(image, text.T)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    # By default TPUs round float32 to bfloat16 and GPUs to TF32, and logits reach 100.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


# (scalars, rows, sums of rows, columns, sums of columns) -> both sums with one block more
_Block = Callable[[Sums, Sums, Sums, Sums, Sums], tuple[Sums, Sums]]


def _meet(
    block: _Block, scalars: Sums, rows: Sums, row_sums: Sums, columns: Sums, column_sums: Sums
) -> tuple[Sums, Sums]:
    """Return the sums over every row with every column, of whatever `block` adds to them.

    Rows and columns are pytrees of arrays [B, ...] that lie on the mesh as a batch does.
    """
    mesh = jax.sharding.get_abstract_mesh()
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
    scalars: Sums,
    rows: Sums,
    row_sums: Sums,
    columns: Sums,
    column_sums: Sums,
) -> tuple[Sums, Sums]:
    """Meet the columns of all devices, one device's after the other; on each device's own rows."""
    own = functools.partial(_meet_own, block, scalars, rows)
    if shards == 1:
        return own(row_sums, columns, column_sums)
    pairs = [(i, (i + 1) % shards) for i in range(shards)]
    to_next = functools.partial(jax.lax.ppermute, axis_name=BATCH_AXES, perm=pairs)

    def step(carry: Sums, _: None) -> tuple[Sums, None]:
        row_sums, columns, column_sums = carry
        row_sums, column_sums = own(row_sums, columns, column_sums)
        return (row_sums, to_next(columns), to_next(column_sums)), None

    # As many steps as devices: the last brings the columns' sums home.
    start = (row_sums, columns, column_sums)
    (row_sums, _, column_sums), _ = jax.lax.scan(step, start, length=shards)
    return row_sums, column_sums


def _meet_own(
    block: _Block, scalars: Sums, rows: Sums, row_sums: Sums, columns: Sums, column_sums: Sums
) -> tuple[Sums, Sums]:
    """Meet the columns that this device holds, in blocks of equal size."""
    count = jax.tree.leaves(rows)[0].shape[0]
    most = max(min(count, _PAIRS // count), 1)
    size = next(n for n in range(most, 0, -1) if count % n == 0)

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(count // size, size, *x.shape[1:])

    def step(row_sums: Sums, at: Sums) -> tuple[Sums, Sums]:
        return block(scalars, rows, row_sums, *at)

    row_sums, column_sums = jax.lax.scan(step, row_sums, jax.tree.map(cut, (columns, column_sums)))
    return row_sums, jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), column_sums)
