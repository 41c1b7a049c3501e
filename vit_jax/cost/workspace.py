# SPDX-License-Identifier: Apache-2.0
"""What accelerators' compilers need beside what autodiff keeps: padding, and work in progress.

Each function is one cause, found in the compilers' own reports (`XLA_FLAGS=--xla_dump_to`, files
*-memory-usage-report.txt and *-live-range.txt). benchmarks/NOTES.md has the estimate beside plans.
"""

import collections
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax import trees
from vit_jax.cost.flops import sub_jaxprs
from vit_jax.devices.hardware import Target

PyTree = Any
Count = Callable[[Any], int]  # the bytes of an abstract value

# libtpu's `memory_analysis` counts 0.38 to 0.60 GB beside the buffers that it assigns, for steps of
# S/16 to H/14 on v3 and v5e; its reports do not say why.
BESIDE_BUFFERS = {"tpu": 450_000_000}

# A transformer block has four matmuls with weights, a residual block of convolutions three or four.
_OF_A_BLOCK = 4
_PRODUCTS = ("dot_general", "conv_general_dilated")


def padded(shape: Sequence[int], itemsize: int, target: Target) -> int:
    """Return the bytes of an array as the target lays it out.

    A TPU's memory holds tiles of 8 x 128: a head of width 64 takes 128 lanes, unless its tokens
    take the lanes, whichever is less. An NVIDIA GPU multiplies half-precision matrices whose sides
    are multiples of 8, and XLA keeps what it padded for that: 197 x 197 weights of attention.
    """
    sides = [side for side in shape if side != 1]
    if len(sides) >= 2:
        *lead, rows, columns = sides
        if target.platform == "tpu":
            tiled = min(_up(rows, 8) * _up(columns, 128), _up(rows, 128) * _up(columns, 8))
            return math.prod(lead) * tiled * itemsize
        if target.platform == "gpu" and itemsize == 2 and columns % 8:
            return math.prod(lead) * _up(rows, 8) * _up(columns, 8) * itemsize
    return math.prod(sides) * itemsize


def _up(size: int, unit: int) -> int:
    return math.ceil(size / unit) * unit


def held(kept: Collection[Any], jaxpr: Any, target: Target) -> list[Any]:
    """Return the abstract values that a compiler holds for `kept`, variables of a forward pass."""
    if target.platform == "gpu":
        wide = _read_wide(jaxpr)
        return [var.aval for var in dict.fromkeys(wide.get(var, var) for var in kept)]
    if target.platform != "tpu":
        return [var.aval for var in kept]
    wide, groups = _batch_normed(jaxpr), _of_groups(jaxpr)
    shapes = collections.defaultdict(list)  # that the forward pass reshapes a variable to
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "reshape":
            shapes[eqn.invars[0]].append(eqn.outvars[0].aval.shape)
    found = []
    for var in kept:
        dtype = jnp.float32 if var in wide else var.aval.dtype
        # Heads side by side fill the lanes that one alone leaves empty.
        size = functools.partial(padded, itemsize=var.aval.dtype.itemsize, target=target)
        shape = min([var.aval.shape, *shapes[var]], key=size)
        if var in groups:
            *lead, channels = var.aval.shape
            shape = (*lead, _up(groups[var], 128) * channels // groups[var])
        found.append(jax.ShapeDtypeStruct(shape, dtype))
    return found


def _read_wide(jaxpr: Any) -> dict[Any, Any]:
    """Map casts from float32 to their source where something else reads that too.

    XLA for GPUs stores such a value once and fuses the cast into its readers: the powers of a
    softmax, which are summed in float32 and multiplied in bfloat16.
    """
    uses = collections.Counter(var for eqn in jaxpr.eqns for var in _variables(eqn))
    return {
        eqn.outvars[0]: eqn.invars[0]
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "convert_element_type"
        and eqn.invars[0].aval.dtype == jnp.float32
        and uses[eqn.invars[0]] > 1
    }


def _batch_normed(jaxpr: Any) -> set[Any]:
    """Find the matmuls' and convolutions' results that a BatchNorm reads.

    libtpu drops the cast to bfloat16 between the two and holds such a result in float32, from its
    sum over examples to the backward pass; what a GroupNorm reads it holds in bfloat16.
    """
    source: dict[Any, Any] = {}  # of what is such a result, reshaped or cast to float32
    found = set()
    for eqn in jaxpr.eqns:
        name, read = eqn.primitive.name, _variables(eqn)
        if name in _PRODUCTS:
            source[eqn.outvars[0]] = eqn.outvars[0]
        elif name in ("reshape", "convert_element_type") and read and read[0] in source:
            source[eqn.outvars[0]] = source[read[0]]
        elif name == "reduce_sum" and read[0] in source:
            result = source[read[0]]
            if eqn.outvars[0].aval.size == result.aval.shape[-1]:  # over all but the channels
                found.add(result)
    return found


def _of_groups(jaxpr: Any) -> dict[Any, int]:
    """Map what a grouped convolution reads and writes to a group's channels, which libtpu parts."""
    groups = [(eqn, eqn.params.get("feature_group_count", 1)) for eqn in jaxpr.eqns]
    pairs = [(var, n) for eqn, n in groups if n > 1 for var in (eqn.invars[0], eqn.outvars[0])]
    return {var: var.aval.shape[-1] // count for var, count in pairs}


def _variables(eqn: Any) -> list[Any]:
    return [var for var in eqn.invars if not isinstance(var, core.Literal)]


def in_progress(jaxpr: Any, count: Count, target: Target) -> int:
    """Sum what the backward pass of one block holds at once, from the forward pass.

    A weight's gradient is computed late in its block, and what it is made of is held until then:
    the gradients of the outputs of the block's matmuls and convolutions, each as large as the
    output. And the gradient of the attention's logits: on a GPU in float32 before it is cast, on a
    TPU as it is multiplied.
    """
    of_weights, of_activations = [], [0]
    for eqn in _products(jaxpr):
        gradient = eqn.outvars[0].aval
        if eqn.primitive.name == "dot_general" and eqn.params["dimension_numbers"][1][0]:
            if target.platform == "tpu":
                gradient = jax.ShapeDtypeStruct(gradient.shape, eqn.invars[0].aval.dtype)
            of_activations.append(count(gradient))
        else:
            of_weights.append(count(gradient))
    return sum(sorted(of_weights)[-_OF_A_BLOCK:]) + max(of_activations)


def _products(jaxpr: Any) -> list[Any]:
    found = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in _PRODUCTS]
    inside = [sub for eqn in jaxpr.eqns for sub in sub_jaxprs(eqn.params)]
    return found + [eqn for sub in inside for eqn in _products(sub)]


def gathered_weights(
    params: PyTree, axis_sizes: Any, itemsize: int, num_bytes: int, *, recomputed: bool
) -> int:
    """Sum what a layer of fsdp has whole: its weights, the next layer's, and its gradients.

    Args:
        params: of the model, stacks with a leading axis of layers.
        itemsize, num_bytes: of a value that weights are gathered, that gradients are summed in.
        recomputed: the layer is run again, and its own weights are counted with what it then keeps.
    """
    if axis_sizes["fsdp"] == 1:
        return 0
    layers: dict[str, float] = collections.defaultdict(float)
    for name, leaf in trees.named_leaves(params):
        stacked = trees.is_stacked(name)
        key = name.split("/")[0] if stacked else name
        layers[key] += leaf.size / (leaf.shape[0] if stacked else 1)
    largest = max(layers.values()) / axis_sizes["tensor"]
    return int(largest * ((2 - recomputed) * itemsize + num_bytes))
