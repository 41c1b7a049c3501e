# SPDX-License-Identifier: Apache-2.0
"""A run's memory per device and of its checkpoints: from shapes alone, and as XLA plans it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

from vit_jax import trees
from vit_jax.analysis.peak import array_bytes, peak_of

PyTree = Any


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
        gradients: one set.
        activations: what else is held where the step holds most: what the forward pass keeps for
            the backward pass, its largest intermediate results, sums over micro-batches.
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
    step: Callable[..., Any],
    batch: PyTree,
    *,
    frozen: PyTree = None,
    batch_shards: int = 1,
) -> Memory:
    """Estimate the memory of a training step; computes nothing, compiles nothing.

    What is held between operations is read off the step's program (`peak.peak_of`), in the
    program's order. Where blocks run in a loop XLA keeps to that order; where they are laid out it
    holds weights' gradients back, and plans more. A tensor axis is taken to leave activations
    whole, and gathered weights are counted as they are cut.

    Args:
        state: the train state, abstract or not; a leaf without a sharding counts as replicated.
        step: `step(state, frozen, batch) -> (state, metrics)`, which writes over its state.
        batch: the global batch, leading axis B.
        frozen: what the step takes besides and leaves as it is, or None.
        batch_shards: number of parts the mesh cuts the batch into.
    """
    local = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (max(leaf.shape[0] // batch_shards, 1), *leaf.shape[1:]), leaf.dtype
        ),
        batch,
    )
    # Gradients and what becomes of them are cut as the parameters are.
    parts = {leaf.shape: _parts(leaf) for leaf in jax.tree.leaves(state.params) if leaf.ndim > 1}
    args = (*jax.tree.map(_unsharded, (state, frozen)), local)
    program = jax.make_jaxpr(step)(*args)
    peak = peak_of(program.jaxpr, lambda aval: array_bytes(aval) // parts.get(aval.shape, 1))
    gradients = device_bytes(state.params)
    return Memory(
        params=gradients + device_bytes(state.model_state),
        optimizer=device_bytes(state.opt_state),
        ema=device_bytes(state.ema),
        frozen=device_bytes(frozen),
        gradients=gradients,
        activations=max(peak - gradients, 0),
        batch=device_bytes(local),
        checkpoint=trees.num_bytes((state.params, state.model_state, state.opt_state, state.ema)),
    )


def planned(compiled: Any) -> int:
    """Return the bytes that XLA's plan of a compiled program takes of each device."""
    plan = compiled.memory_analysis()
    return (
        plan.argument_size_in_bytes
        + plan.output_size_in_bytes
        - plan.alias_size_in_bytes
        + plan.temp_size_in_bytes
    )


def device_bytes(tree: PyTree) -> int:
    """Sum the bytes that one device holds of all leaves, by the leaves' shardings."""
    return sum(array_bytes(leaf) // _parts(leaf) for leaf in jax.tree.leaves(tree))


def _parts(leaf: Any) -> int:
    """Count the parts that a leaf's sharding cuts it into."""
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return math.prod(leaf.shape) // max(math.prod(shape), 1) or 1


def _unsharded(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
