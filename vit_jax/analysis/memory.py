# SPDX-License-Identifier: Apache-2.0
"""Estimate of a run's memory per device and of its checkpoints, from shapes and shardings alone."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from jax.extend import core

from vit_jax import trees
from vit_jax.analysis.flops import sub_jaxprs

PyTree = Any

_SAME_MEMORY = ("reshape", "broadcast_in_dim", "squeeze", "expand_dims")


@runtime_checkable
class State(Protocol):
    """The fields of the train state that take memory; leaves are arrays or ShapeDtypeStructs."""

    params: Any
    model_state: Any
    opt_state: Any
    ema: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device during a training step, and bytes of one checkpoint.

    Attributes:
        params: parameters and model state (batch statistics).
        optimizer: the optimizer's state.
        ema: the moving average of the parameters.
        frozen: parameters that are not trained, such as a teacher's.
        gradients: one set, two where micro-batches are accumulated; and a set of parameters where
            SAM moves uphill.
        activations: what the forward pass keeps for the backward pass.
        batch: the input images and labels.
        checkpoint: the whole state before compression, over all devices.
    """

    params: int
    optimizer: int
    ema: int
    frozen: int
    gradients: int
    activations: int
    batch: int
    checkpoint: int

    @property
    def device_total(self) -> int:
        """Bytes on one device, all together."""
        return (
            self.params
            + self.optimizer
            + self.ema
            + self.frozen
            + self.gradients
            + self.activations
            + self.batch
        )


def estimate(
    state: State,
    loss: Callable[..., Any],
    batch: PyTree,
    *,
    frozen: PyTree = None,
    batch_shards: int = 1,
    num_microbatches: int = 1,
    uphill: bool = False,
) -> Memory:
    """Estimate the memory of `loss`'s training step; computes nothing and needs no device.

    The activations are what autodiff asks for: a compiler saves some of it by recomputing
    element-wise work, and spends some on workspace and on gathered weights. benchmarks/NOTES.md
    has it beside XLA's plan for every family. A tensor axis is taken to leave activations whole.

    Args:
        state: the train state, abstract or not; a leaf without a sharding counts as replicated.
        loss: `loss(params, frozen, model_state, batch, rng) -> (scalar, aux)`.
        batch: the global batch, leading axis B.
        frozen: what the loss takes besides the trained parameters, or None.
        batch_shards: number of parts the mesh cuts the batch into.
        num_microbatches: number of pieces a device takes its part in.
        uphill: a second gradient is taken at other parameters (SAM).
    """

    def cut(leaf: Any, parts: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((max(leaf.shape[0] // parts, 1), *leaf.shape[1:]), leaf.dtype)

    local = jax.tree.map(lambda leaf: cut(leaf, batch_shards), batch)
    micro = jax.tree.map(lambda leaf: cut(leaf, batch_shards * num_microbatches), batch)
    params = device_bytes(state.params)
    return Memory(
        params=params + device_bytes(state.model_state),
        optimizer=device_bytes(state.opt_state),
        ema=device_bytes(state.ema),
        frozen=device_bytes(frozen),
        gradients=params * (1 + (num_microbatches > 1) + uphill),
        activations=activation_bytes(loss, state.params, frozen, state.model_state, micro),
        batch=device_bytes(local),
        checkpoint=trees.num_bytes((state.params, state.model_state, state.opt_state, state.ema)),
    )


def planned(compiled: Any) -> int:
    """Return the bytes that the compiler's plan of a program takes of each device's memory.

    On a TPU that is the peak: `temp_size_in_bytes` there counts the memory on the chip's core too
    (111 MiB of a v5e's), and on top of it what is in no allocation of the buffer assignment: of
    L/16's step on 16 v5e it is 1.41 GB where 0.94 GB of temporaries are allocated.
    """
    plan = compiled.memory_analysis()
    if _platform(compiled) == "tpu":
        return plan.peak_memory_in_bytes
    return (
        plan.argument_size_in_bytes
        + plan.output_size_in_bytes
        - plan.alias_size_in_bytes
        + plan.temp_size_in_bytes
    )


def _platform(compiled: Any) -> str:
    where = jax.tree.leaves(compiled.output_shardings)[0]
    return next(iter(where.device_set)).platform


def device_bytes(tree: PyTree) -> int:
    """Sum the bytes that one device holds of all leaves, by the leaves' shardings."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * _itemsize(leaf)
    return total


def activation_bytes(
    loss: Callable[..., Any], params: PyTree, frozen: PyTree, model_state: PyTree, batch: PyTree
) -> int:
    """Sum what autodiff keeps between the forward and the backward pass of `loss`.

    The residuals that are an input themselves (a weight, the batch) are held anyway and left out.
    Rematerialised blocks add what the largest of them keeps while it is run again; blocks that are
    laid out, the copies of their weights that are cut out of the stack.
    """

    args = jax.tree.map(_unsharded, (params, frozen, model_state, batch))

    def scalar(params: PyTree, *rest: PyTree) -> Any:
        return loss(params, *rest, jax.random.key(0))

    def pullback(params: PyTree, *rest: PyTree) -> Any:
        return jax.vjp(lambda p: scalar(p, *rest), params, has_aux=True)[1]

    jaxpr = jax.make_jaxpr(scalar)(*args).jaxpr
    recomputed = max(map(_recomputed_bytes, _remat_bodies(jaxpr)), default=0)
    return _kept_bytes(pullback, args) + recomputed + _cut_bytes(jaxpr)


def _recomputed_bytes(body: core.ClosedJaxpr) -> int:
    fn = core.jaxpr_as_fun(body)
    return _kept_bytes(lambda *args: jax.vjp(fn, *args)[1], body.in_avals)


def _kept_bytes(pullback: Callable[..., Any], args: Sequence[Any]) -> int:
    """Sum the leaves of a pullback that are none of the arguments.

    What is reshaped or repeated has no memory of its own.
    """
    jaxpr = jax.make_jaxpr(lambda *args: jax.tree.leaves(pullback(*args)))(*args).jaxpr
    origin = {
        eqn.outvars[0]: eqn.invars[0] for eqn in jaxpr.eqns if eqn.primitive.name in _SAME_MEMORY
    }
    kept = set()
    for var in jaxpr.outvars:
        while not isinstance(var, core.Literal) and var in origin:
            var = origin[var]
        if not isinstance(var, core.Literal):
            kept.add(var)
    return sum(var.aval.size * _itemsize(var.aval) for var in kept.difference(jaxpr.invars))


def _cut_bytes(jaxpr: Any) -> int:
    """Sum what loops that are laid out whole go through: stacked weights."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan" and eqn.params["unroll"] >= eqn.params["length"] > 1:
            stacked = eqn.invars[eqn.params["num_consts"] + eqn.params["num_carry"] :]
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
