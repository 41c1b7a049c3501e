# SPDX-License-Identifier: Apache-2.0
"""Estimate of a run's memory per device and of its checkpoints, from shapes and shardings alone.

To what autodiff keeps comes what accelerators' compilers need: padding, and work in progress. Each
of those functions is one cause, found in the compilers' own reports (`XLA_FLAGS=--xla_dump_to`,
files *-memory-usage-report.txt and *-live-range.txt). benchmarks/NOTES.md has the estimate beside
the plans of compilers.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax import trees
from vit_jax.cost.flops import scan_counts, sub_jaxprs
from vit_jax.devices import hardware, sharding
from vit_jax.devices.hardware import Target
from vit_jax.trees import PyTree

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


_ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1}
_SAME_MEMORY = ("reshape", "broadcast_in_dim", "squeeze", "expand_dims")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device during a training step, and bytes of one checkpoint.

    Attributes:
        params: parameters, model state (batch statistics) and the objective's state.
        frozen: parameters that are not trained, such as a teacher's.
        gradients: a set, a second for micro-batches; and the parameters where SAM moves uphill.
        activations: what the forward pass keeps for the backward pass.
        workspace: what an accelerator's backward pass holds at once: gradients in a block, weights
            gathered for it and cast.
        checkpoint: the whole state before compression, over all devices.
    """

    params: int
    optimizer: int
    ema: int
    frozen: int
    gradients: int
    activations: int
    workspace: int
    batch: int
    checkpoint: int

    @property
    def device_total(self) -> int:
        """Bytes on one device, all together."""
        return sum(dataclasses.astuple(self)) - self.checkpoint


def estimate(
    state: Any,
    loss: Callable[..., Any],
    batch: PyTree,
    *,
    frozen: PyTree = None,
    axis_sizes: Mapping[str, int] = _ONE_DEVICE,
    num_microbatches: int = 1,
    uphill: bool = False,
    compute_bytes: int = 4,
    reduce_bytes: int = 4,
) -> Memory:
    """Estimate the memory of `loss`'s training step; computes nothing and needs no device.

    The activations are what autodiff asks for, as `hardware.target()` lays them out, and on an
    accelerator what its compiler works in (`in_progress`; benchmarks/NOTES.md compares with plans).

    Args:
        state: the train state, abstract or not; a leaf without a sharding counts as replicated.
        loss: `loss(params, frozen, kept, batch, rng) -> (scalar, aux)`, where `kept` is
            (state.model_state, state.ema, state.objective).
        batch: the global batch, leading axis B.
        frozen: what the loss takes besides the trained parameters, or None.
        axis_sizes: of the mesh; `data` and `fsdp` cut the batch into parts.
        num_microbatches: of a step.
        uphill: a second gradient is taken at other parameters (SAM).
        compute_bytes, reduce_bytes: of a value that the model computes with, that gradients are
            summed in.
    """
    shards = axis_sizes["data"] * axis_sizes["fsdp"]

    def cut(leaf: Any, parts: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((max(leaf.shape[0] // parts, 1), *leaf.shape[1:]), leaf.dtype)

    local = jax.tree.map(lambda leaf: cut(leaf, shards), batch)
    micro = jax.tree.map(lambda leaf: cut(leaf, shards * num_microbatches), batch)
    params = device_bytes(state.params)
    count = counter(state.params, axis_sizes)
    kept = (state.model_state, state.ema, state.objective)
    args = (state.params, frozen, kept, micro)
    working = 0
    if hardware.target().platform != "cpu":  # a CPU's schedule keeps the least alive
        forward = _forward(loss, args)
        sizes, remat = (axis_sizes, compute_bytes, reduce_bytes), bool(_remat_bodies(forward))
        working = in_progress(forward, count, hardware.target())
        working += gathered_weights(state.params, *sizes, recomputed=remat)
        working += _cast_bytes(state.params, compute_bytes)
        working += BESIDE_BUFFERS.get(hardware.target().platform, 0)
    return Memory(
        params=params + device_bytes((state.model_state, state.objective)),
        optimizer=device_bytes(state.opt_state),
        ema=device_bytes(state.ema),
        frozen=device_bytes(frozen),
        gradients=params * (1 + (num_microbatches > 1) + uphill),
        activations=activation_bytes(loss, *args, count=count),
        workspace=working,
        batch=device_bytes(local),
        checkpoint=trees.num_bytes((state.params, state.opt_state, kept)),
    )


def counter(params: PyTree, axis_sizes: Mapping[str, int]) -> Count:
    """Return what counts the bytes that an array of activations takes of one device.

    A tensor axis cuts arrays as wide as a kernel whose columns it cuts, and arrays with heads: four
    dimensions, but not as wide as the tokens.
    """
    target, tensor = hardware.target(), axis_sizes["tensor"]
    inner, outer = set(), set()
    for name, leaf in trees.named_leaves(params):
        spec = sharding.spec(name, leaf.shape, axis_sizes)
        if tensor > 1 and len(spec) >= 2 and spec[-1] == "tensor":
            inner.add(leaf.shape[-1])
            outer.add(leaf.shape[-2])

    def count(aval: Any) -> int:
        size = padded(aval.shape, _itemsize(aval), target)
        if not inner or not aval.shape:
            return size
        width = aval.shape[-1]
        within = width in inner - outer or (len(aval.shape) >= 4 and width not in outer)
        return size // tensor if within else size

    return count


def _cast_bytes(params: PyTree, itemsize: int) -> int:
    """Sum the casts of stacked weights, made before the loop over layers in a TPU's program."""
    if hardware.target().platform != "tpu" or itemsize == 4:
        return 0
    stacked = [leaf for name, leaf in trees.named_leaves(params) if trees.is_stacked(name)]
    return device_bytes(stacked) * itemsize // 4


def planned(compiled: Any) -> int:
    """Return the bytes that the compiler's plan of a program takes of each device."""
    plan = compiled.memory_analysis()
    ends = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return ends + plan.temp_size_in_bytes


def device_bytes(tree: PyTree) -> int:
    """Sum the bytes that one device holds of all leaves, by the leaves' shardings."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        where = getattr(leaf, "sharding", None)
        shape = leaf.shape if where is None else where.shard_shape(leaf.shape)
        total += math.prod(shape) * _itemsize(leaf)
    return total


def activation_bytes(
    loss: Callable[..., Any],
    params: PyTree,
    frozen: PyTree,
    kept: PyTree,
    batch: PyTree,
    *,
    count: Count | None = None,
) -> int:
    """Sum what autodiff keeps between the forward and the backward pass of `loss`.

    Inputs (a weight, the batch) are held anyway and left out. Rematerialised blocks add what the
    largest of them keeps while it runs again; unrolled blocks the weights cut out of their stack.
    """
    count = count or counter(params, _ONE_DEVICE)
    args = (params, frozen, kept, batch)

    def pullback(params: PyTree, *rest: PyTree) -> Any:
        return jax.vjp(lambda p: loss(p, *rest, jax.random.key(0)), params, has_aux=True)[1]

    def recomputed(body: core.ClosedJaxpr) -> int:
        fn = core.jaxpr_as_fun(body)
        return _kept_bytes(lambda *args: jax.vjp(fn, *args)[1], body.in_avals, count)

    jaxpr = _forward(loss, args)
    residuals = _kept_bytes(pullback, jax.tree.map(_unsharded, args), count)
    return residuals + max(map(recomputed, _remat_bodies(jaxpr)), default=0) + _cut_bytes(jaxpr)


def _forward(loss: Callable[..., Any], args: tuple[PyTree, ...]) -> Any:
    keyed = jax.make_jaxpr(lambda *args: loss(*args, jax.random.key(0)))
    return keyed(*jax.tree.map(_unsharded, args)).jaxpr


def _kept_bytes(pullback: Callable[..., Any], args: Sequence[Any], count: Count) -> int:
    """Sum the leaves of a pullback that are not arguments.

    A reshaped or repeated array has no memory of its own. Nor has a comparison on an accelerator,
    such as where a ReLU's input was above 0: it is fused into its readers, and computed again.
    """
    jaxpr = jax.make_jaxpr(lambda *args: jax.tree.leaves(pullback(*args)))(*args).jaxpr
    same = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in _SAME_MEMORY]
    origin = {eqn.outvars[0]: eqn.invars[0] for eqn in same}
    kept = set()
    for var in jaxpr.outvars:
        while not isinstance(var, core.Literal) and var in origin:
            var = origin[var]
        if not isinstance(var, core.Literal):
            kept.add(var)
    kept = kept.difference(jaxpr.invars)
    if hardware.target().platform != "cpu":
        kept = {var for var in kept if var.aval.dtype != jnp.bool_}
    return sum(map(count, held(kept, jaxpr, hardware.target())))


def _cut_bytes(jaxpr: Any) -> int:
    """Sum what loops that are laid out whole go through: stacked weights."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan" and eqn.params["unroll"] >= eqn.params["length"] > 1:
            stacked = eqn.invars[sum(scan_counts(eqn.params)) :]
            total += sum(x.aval.size * _itemsize(x.aval) for x in stacked)
        else:
            total += sum(map(_cut_bytes, sub_jaxprs(eqn.params)))
    return total


def _remat_bodies(jaxpr: Any) -> list[core.ClosedJaxpr]:
    """Find the bodies of `jax.checkpoint` (`nn.remat`), outermost only."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("remat2", "checkpoint"):
            found.append(core.ClosedJaxpr(eqn.params["jaxpr"], ()))
        else:
            found += [body for sub in sub_jaxprs(eqn.params) for body in _remat_bodies(sub)]
    return found


def _unsharded(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _itemsize(leaf: Any) -> int:
    """Return the bytes of an element; a typed PRNG key counts as its data."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), leaf.dtype))
        return data.size * data.dtype.itemsize
    return leaf.dtype.itemsize
