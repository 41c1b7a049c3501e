# SPDX-License-Identifier: Apache-2.0
"""Convolutions and max-pool, each in the form that its device runs fastest.

Weight standardisation: arXiv:1903.10520 section 3. On CPUs the max-pool has an element-wise
backward pass: XLA's gradient there scatters single numbers and takes five times as long. Other
backends have kernels.
"""

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from vit_jax.devices import hardware
from vit_jax.devices.sharding import BATCH_AXES, auto_mesh, constrain_parameter
from vit_jax.models.layers.dense import in_step, is_for_this_machine, matmul
from vit_jax.models.layers.init import Initializer

# What is added (before, after) the rows and the columns of a map.
Pads = tuple[tuple[int, int], tuple[int, int]]
# Input channels up to which groups are computed together on a CPU.
_DENSE = 32


def reduce_max(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> Float[Array, "B P Q C"]:
    """Take the maximum of square windows; the first of equal numbers gets the gradient."""
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    padding = ((0, 0), *pads, (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def window_max(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> Float[Array, "B P Q C"]:
    """Return `reduce_max`, with an element-wise gradient."""
    return _maximum(x, size, stride, pads)


def _maximum(x: jax.Array, *window: Any) -> jax.Array:
    if is_for_this_machine():  # a third of the time on a CPU; an export keeps its pooling
        return functools.reduce(jnp.maximum, _windows(x, *window))
    return reduce_max(x, *window)


def _max_forward(x: jax.Array, *window: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    y = _maximum(x, *window)
    return y, (x, y)


def _max_backward(
    size: int, stride: int, pads: Pads, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array]:
    x, y = saved
    free = jnp.ones(y.shape, bool)
    gradients = []
    for tap in _windows(x, size, stride, pads):
        hit = free & (tap == y)
        free &= ~hit
        gradients.append(jnp.where(hit, dy, 0))
    return (_sum_windows(gradients, size, stride, pads, x.shape),)


window_max.defvjp(_max_forward, _max_backward)


def _windows(
    x: Float[Array, "B H W C"], size: int, stride: int, pads: Pads
) -> list[Float[Array, "B P Q C"]]:
    """Return for each tap of a square window, row by row, its input at each position."""
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    rows, columns = ((n - size) // stride * stride + 1 for n in padded.shape[1:3])
    taps = itertools.product(range(size), repeat=2)
    return [padded[:, i : i + rows : stride, j : j + columns : stride] for i, j in taps]


def _sum_windows(
    gradients: Sequence[Float[Array, "B P Q C"]],
    size: int,
    stride: int,
    pads: Pads,
    shape: tuple[int, ...],
) -> Float[Array, "B H W C"]:
    """Transpose `_windows`: add each tap's gradient where the tap read, on a map of `shape`.

    Positions a * stride + b of a row (or column) share the taps b, b + stride, ...: each residue b
    is a sum of shifted gradients, and the residues are interleaved at the end.
    """
    batch, num_rows, num_columns, channels = shape
    padded = [n + sum(pad) for n, pad in zip((num_rows, num_columns), pads, strict=True)]
    cells = [-(-n // stride) for n in padded]  # positions of each residue
    residues = []
    for b in itertools.product(range(stride), repeat=2):
        total = jnp.zeros((batch, *cells, channels), gradients[0].dtype)
        for i, j in itertools.product(*(range(first, size, stride) for first in b)):
            dx = gradients[i * size + j]
            edges = [
                (tap // stride, cells[d] - dx.shape[1 + d] - tap // stride, 0)
                for d, tap in enumerate((i, j))
            ]
            zero = jnp.zeros((), dx.dtype)
            total += jax.lax.pad(dx, zero, ((0, 0, 0), *edges, (0, 0, 0)))
        residues.append(total)
    if stride > 1:
        rows = [jnp.stack(residues[k * stride :][:stride], 3) for k in range(stride)]
        whole = jnp.stack(rows, 2)  # (B, rows, residue, columns, residue, C)
    else:
        whole = residues[0]
    whole = whole.reshape(batch, cells[0] * stride, cells[1] * stride, channels)
    (top, _), (left, _) = pads
    return whole[:, top : top + num_rows, left : left + num_columns]


def conv2d(
    x: Float[Array, "B H W I"],
    kernel: Float[Array | np.ndarray, "k k J O"],
    *,
    stride: int = 1,
    groups: int = 1,
    pads: Pads | None = None,
) -> Float[Array, "B P Q O"]:
    """Convolve with k // 2 zeros on every side; group i of O reads group i of I = groups * J.

    XLA's CPU backend needs 2 to 4 times a matmul's time for the backward pass of a 1x1 convolution,
    and for that of a grouped one 40 to 150 times the sum of its groups. Groups are many and small:
    a few of them computed together, with zeros between them, halve the time.

    Args:
        x: maps.
        kernel: of odd sides, cast to the dtype of x.
        stride: of rows and columns.
        groups: of channels.
        pads: other zeros before and after the rows and the columns.
    """
    kernel = jnp.asarray(kernel)
    if kernel.shape[:2] == (1, 1) and groups == 1 and pads is None:
        # Not x[:, ::stride]: that gathers where the batch is symbolic, as in an export.
        x = jax.lax.slice(x, (0,) * 4, x.shape, (1, stride, stride, 1))
        return matmul(x.reshape(-1, x.shape[-1]), kernel[0, 0]).reshape(*x.shape[:-1], -1)
    kernel = kernel.astype(x.dtype)
    side = kernel.shape[0] // 2
    pads = ((side, side), (side, side)) if pads is None else pads
    if groups == 1:
        return _convolve(x, kernel, stride, pads, groups)
    if hardware.target().platform != "cpu":
        return _convolve_shards(x, kernel, stride, pads, groups)
    step_on_one = in_step() and auto_mesh().size < 2
    pass_on_one = is_for_this_machine() and jax.device_count() == 1  # it has no mesh to ask
    if kernel.shape[2:] == (1, groups) and stride == 1 and (step_on_one or pass_on_one):
        return depthwise(x, kernel, pads)
    together = max(_DENSE // kernel.shape[2], 1)  # groups
    inputs, outputs = together * kernel.shape[2], together * (kernel.shape[3] // groups)
    pairs = zip(_chunks(x, inputs), _chunks(kernel, outputs), strict=True)
    return jnp.concatenate(
        [_convolve(a, _block_diagonal(b, a.shape[-1]), stride, pads, 1) for a, b in pairs], axis=-1
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def depthwise(
    x: Float[Array, "B H W C"], kernel: Float[Array, "k k 1 C"], pads: Pads
) -> Float[Array, "B P Q C"]:
    """Convolve every channel alone, as a sum over the kernel's taps in float32, image by image.

    On a CPU, 7x7 on 56 x 56 x 96 takes a tenth of the time of 32 channels together with zeros
    between them. Without the loop, which also keeps an image in the cache, XLA would compute the
    sum again for each of its readers. A partitioner could not split the loop over devices.
    """
    side, wide = kernel.shape[0], kernel.astype(jnp.float32)
    rows, columns = (n + sum(pad) - side + 1 for n, pad in zip(x.shape[1:3], pads, strict=True))

    def one(image: jax.Array) -> jax.Array:
        total = jnp.zeros((rows, columns, x.shape[-1]), jnp.float32)
        for i, j in itertools.product(range(side), repeat=2):
            total = total + image[i : i + rows, j : j + columns] * wide[i, j][None]
        return total.astype(x.dtype)

    return jax.lax.map(one, _padded(x, pads))


def _padded(x: jax.Array, pads: Pads) -> jax.Array:
    return jnp.pad(x, ((0, 0), *pads, (0, 0))).astype(jnp.float32)


def _depthwise_forward(
    x: jax.Array, kernel: jax.Array, pads: Pads
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return depthwise(x, kernel, pads), (x, kernel)


def _depthwise_backward(
    pads: Pads, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients; that of x is a convolution too, by the kernel turned around."""
    x, kernel = saved
    side, (rows, columns) = kernel.shape[0], dy.shape[1:3]
    (top, bottom), (left, right) = ([side - 1 - n for n in pad] for pad in pads)
    dx = jnp.asarray(depthwise(dy, kernel[::-1, ::-1], ((top, bottom), (left, right))))
    taps = list(itertools.product(range(side), repeat=2))

    def add(total: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        image, wide = pair
        sums = [(image[i : i + rows, j : j + columns] * wide).sum((0, 1)) for i, j in taps]
        return total + jnp.stack(sums), None

    zeros = jnp.zeros((len(taps), x.shape[-1]), jnp.float32)
    dkernel, _ = jax.lax.scan(add, zeros, (_padded(x, pads), dy.astype(jnp.float32)))
    return dx, dkernel.reshape(kernel.shape).astype(kernel.dtype)


depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _chunks(x: jax.Array, width: int) -> list[jax.Array]:
    """Split the channels into chunks of `width`; the last may be narrower."""
    return jnp.split(x, list(range(width, x.shape[-1], width)), axis=-1)


def _block_diagonal(kernel: Float[Array, "k k J O"], inputs: int) -> Float[Array, "k k I O"]:
    """Write the kernel of I / J groups as that of one, with zeros between them."""
    *sides, width, outputs = kernel.shape
    groups = inputs // width
    blocks = kernel.reshape(*sides, 1, width, groups, outputs // groups)
    diagonal = jnp.eye(groups, dtype=kernel.dtype).reshape(1, 1, groups, 1, groups, 1)
    return (blocks * diagonal).reshape(*sides, inputs, outputs)


def _convolve_shards(
    x: jax.Array, kernel: jax.Array, stride: int, pads: Pads, groups: int
) -> jax.Array:
    """Convolve groups, every device its own shard of the batch.

    XLA's partitioner cannot split a grouped convolution: each device would gather the images of all
    the others and convolve the whole batch.
    """
    convolve = functools.partial(_convolve, stride=stride, pads=pads, groups=groups)
    mesh = auto_mesh()
    if mesh.empty or x.shape[0] % math.prod(mesh.shape[axis] for axis in BATCH_AXES):
        return convolve(x, kernel)
    rows, axes = PartitionSpec(BATCH_AXES), set(BATCH_AXES)
    specs = (rows, PartitionSpec())
    split = jax.shard_map(convolve, in_specs=specs, out_specs=rows, axis_names=axes)
    return split(x, kernel)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int, pads: Pads, groups: int) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(stride, stride),
        padding=pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def kaiming_normal(groups: int = 1) -> Initializer:
    """Return the initializer N(0, 2 / fan_out) of a convolution's kernel (arXiv:1502.01852)."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        fan_out = math.prod(shape[:-2]) * shape[-1] // groups
        return math.sqrt(2 / fan_out) * jax.random.normal(key, shape, dtype)

    return init


class Padding(enum.StrEnum):
    """How convolutions and the stem's max-pool pad the border: a property of the weights."""

    SAME = "same"  # TensorFlow's: stride 2 on an even side pads one more after it than before
    SYMMETRIC = "symmetric"  # PyTorch's: as much before as after
    FIXED = "fixed"  # BiT's: as symmetric, but the max-pool sees zeros there, not -inf


@dataclasses.dataclass(frozen=True)
class WeightStd:
    """Weight standardisation: zero mean and unit variance of every output channel's kernel.

    Attributes:
        eps: keeps the division finite.
        outside: eps is added to the deviation (google-research/vision_transformer) instead of the
            variance (BiT, timm); on small weights the logits differ.
    """

    eps: float
    outside: bool = False

    def __call__(self, kernel: Float[Array, "k k I O"]) -> Float[Array, "k k I O"]:
        """Standardise over all but the output channels, by the biased variance."""
        flat = kernel.reshape(-1, kernel.shape[-1])  # sums over a single axis: 5 % of BiT's step
        flat = flat - flat.mean(axis=0, keepdims=True)
        variance = jnp.square(flat).mean(axis=0, keepdims=True)
        if self.outside:
            return (flat / (jnp.sqrt(variance) + self.eps)).reshape(kernel.shape)
        return (flat * jax.lax.rsqrt(variance + self.eps)).reshape(kernel.shape)


class Conv(nn.Module):
    """Convolution without bias; kernel [k, k, in / groups, out] in float32, computed in `dtype`.

    `weight_std` standardises the kernel in float32; None does not.
    """

    features: int
    kernel_size: int
    dtype: Any
    stride: int = 1
    groups: int = 1
    padding: Padding = Padding.SYMMETRIC
    weight_std: WeightStd | None = None
    kernel_init: Initializer | None = None  # None: `kaiming_normal`

    @nn.compact
    def __call__(self, x: Float[Array, "B H W I"]) -> Float[Array, "B P Q O"]:
        k, init = self.kernel_size, self.kernel_init or kaiming_normal(self.groups)
        shape = (k, k, x.shape[-1] // self.groups, self.features)
        kernel = jnp.asarray(self.param("kernel", init, shape, jnp.float32))
        kernel = constrain_parameter(kernel, f"{self.name}/kernel")
        if self.weight_std is not None:
            kernel = self.weight_std(kernel)
        x = x.astype(self.dtype)
        pads = _same_pads(x, k, self.stride) if self.padding is Padding.SAME and k > 1 else None
        return conv2d(x, kernel, stride=self.stride, groups=self.groups, pads=pads)


def max_pool(x: Float[Array, "B H W C"], padding: Padding) -> Float[Array, "B P Q C"]:
    """Take the maximum of 3x3 at every second position."""
    if padding is Padding.FIXED:
        x, pads = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), ((0, 0), (0, 0))
    else:
        pads = _same_pads(x, 3, 2) if padding is Padding.SAME else ((1, 1), (1, 1))
    pool = window_max if hardware.target().platform == "cpu" else reduce_max
    return pool(x, 3, 2, pads)


def _same_pads(x: jax.Array, size: int, stride: int) -> Pads:
    rows, columns = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), "SAME")
    return rows, columns
