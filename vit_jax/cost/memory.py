# SPDX-License-Identifier: Apache-2.0
"""Estimate of a run's memory per device and of its checkpoints, from shapes and shardings alone."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from vit_jax import trees
from vit_jax.cost import workspace
from vit_jax.cost.flops import scan_counts, sub_jaxprs
from vit_jax.devices import hardware, sharding

PyTree = Any

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
    accelerator what its compiler works in (workspace.py; benchmarks/NOTES.md compares with plans).

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
        working = workspace.in_progress(forward, count, hardware.target())
        working += workspace.gathered_weights(state.params, *sizes, recomputed=remat)
        working += _cast_bytes(state.params, compute_bytes)
        working += workspace.BESIDE_BUFFERS.get(hardware.target().platform, 0)
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


def counter(params: PyTree, axis_sizes: Mapping[str, int]) -> workspace.Count:
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
        size = workspace.padded(aval.shape, _itemsize(aval), target)
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
    count: workspace.Count | None = None,
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


def _kept_bytes(pullback: Callable[..., Any], args: Sequence[Any], count: workspace.Count) -> int:
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
    return sum(map(count, workspace.held(kept, jaxpr, hardware.target())))


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
