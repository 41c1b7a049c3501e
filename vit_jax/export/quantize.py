# SPDX-License-Identifier: Apache-2.0
"""Smaller weights for a model that is done: bfloat16, or int8 with a scale for each channel.

Only what is stored shrinks: weights come back as float32 before they are used, and the model
computes in the dtype that it always did.
"""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float, Int8

from vit_jax import trees

# Elements of one layer's array below which shrinking it saves nothing worth its rounding.
MIN_SIZE = 1024
_LEVELS = 127  # levels of each sign: -128 is left out, so that the range is symmetric


class WeightDType(enum.StrEnum):
    """What a weight is stored as."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


class Quantized(NamedTuple):
    """values * scale is the weight; the scale is float32 and has size 1 where it is shared."""

    values: Int8[np.ndarray | Array, "*shape"]
    scale: Float[np.ndarray | Array, "*scale"]


def quantize(kernel: Float[np.ndarray, "*shape"], *, stacked: bool = False) -> Quantized:
    """Round a kernel [..., out] to int8: symmetric, to nearest even, a scale for each channel.

    The last axis counts output channels. With `stacked` the first axis counts layers, each with
    scales of its own.
    """
    shared = tuple(range(int(stacked), kernel.ndim - 1))
    largest = np.abs(kernel).max(axis=shared, keepdims=True)
    scale = np.where(largest > 0, largest / _LEVELS, 1).astype(np.float32)
    return Quantized(np.rint(kernel / scale).astype(np.int8), scale)


def pack(variables: Mapping[str, Any], dtype: WeightDType) -> Any:
    """Store the large arrays of a model's variables (numpy) as `dtype`; the rest stays float32.

    int8 is for the kernels of linear layers and convolutions. bfloat16 is for every parameter of
    two or more axes, so for tokens and position tables too. Norms, biases and the statistics of
    BatchNorm are small, and their rounding would reach every value of a channel.
    """

    def stored(name: str, leaf: np.ndarray) -> Any:
        stacked = trees.is_stacked(name)
        shape = leaf.shape[1:] if stacked else leaf.shape
        large = name.startswith("params/") and len(shape) > 1 and np.prod(shape) >= MIN_SIZE
        if large and dtype is WeightDType.BFLOAT16:
            return leaf.astype(ml_dtypes.bfloat16)
        if large and dtype is WeightDType.INT8 and name.endswith("/kernel"):
            return quantize(leaf, stacked=stacked)
        return leaf

    return trees.map_named(stored, variables)


def unpack(packed: Any) -> Any:
    """Turn what `pack` made into float32 variables again, within the program that is traced."""

    def restored(leaf: Any) -> jax.Array:
        if isinstance(leaf, Quantized):
            return jnp.asarray(leaf.values).astype(jnp.float32) * leaf.scale
        return jnp.asarray(leaf).astype(jnp.float32)  # not numpy's: that would be done at once

    return jax.tree.map(restored, packed, is_leaf=lambda node: isinstance(node, Quantized))
