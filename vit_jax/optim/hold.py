# SPDX-License-Identifier: Apache-2.0
"""Parameters that wait at the start of a run, as DINO's last layer does (facebookresearch/dino).

Its `cancel_gradients_last_layer` deletes their gradients, and PyTorch's optimizers pass over a
parameter without one: neither it, nor its moments, nor the count that corrects them for their start
at zero change, and no decay acts.
"""

from collections.abc import Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vit_jax import trees
from vit_jax.trees import PyTree

Transformation = optax.GradientTransformationExtraArgs


class HoldState(NamedTuple):
    """The number of steps done, and the state of what `holding` wraps."""

    count: Any
    inner: Any


def holding(tx: optax.GradientTransformation, held: Set[str], steps: int) -> Transformation:
    """Hold the parameters in `held` constant for the first `steps` steps.

    In those steps `tx` sees zeros as their gradients. It is passed `waits`, whether this is such a
    step, which `apart` needs.
    """
    tx = optax.with_extra_args_support(tx)

    def init(params: PyTree) -> HoldState:
        return HoldState(jnp.zeros([], jnp.int32), tx.init(params))

    def update(
        updates: PyTree, state: Any, params: Any = None, **extra: Any
    ) -> tuple[PyTree, HoldState]:
        waits = state.count < steps
        grads = filled(updates, held, waits, 0.0)
        updates, inner = tx.update(grads, state.inner, params, waits=waits, **extra)
        # Adding minus zero leaves every number, minus zero included, bitwise as it is.
        updates = filled(updates, held, waits, -0.0)
        return updates, HoldState(optax.safe_increment(state.count), inner)

    return Transformation(init, update)


def filled(tree: PyTree, held: Set[str], waits: jax.Array, value: float) -> PyTree:
    """Replace the leaves in `held` by `value` if `waits`, a bool scalar."""

    def one(name: str, leaf: jax.Array) -> jax.Array:
        return jnp.where(waits, jnp.full_like(leaf, value), leaf) if name in held else leaf

    return trees.map_named(one, tree)


def apart(tx: optax.GradientTransformation, held: Set[str]) -> optax.GradientTransformation:
    """Apply a separate `tx` to the parameters in `held`, whose state is constant while they wait.

    With the common state, the bias correction of their moments would count the steps in which they
    waited: Adam's first step would be 3 times as long, Adafactor's 30 times.
    """

    def labels(params: PyTree) -> PyTree:
        return trees.map_named(lambda name, _: "held" if name in held else "moving", params)

    return optax.partition({"moving": tx, "held": _waiting(tx)}, labels)


def _waiting(tx: optax.GradientTransformation) -> Transformation:
    """Keep the state of `tx` constant if `waits`: moments as in a skipped step, and counters."""
    tx = optax.with_extra_args_support(tx)

    def update(
        updates: PyTree,
        state: Any,
        params: Any = None,
        *,
        waits: Any = False,
        is_valid: jax.Array | bool = True,
        **extra: Any,
    ) -> tuple[PyTree, Any]:
        moves = jnp.logical_not(waits) & is_valid
        updates, new = tx.update(updates, state, params, is_valid=moves, **extra)

        def choose(n: jax.Array, o: jax.Array) -> jax.Array:
            return jnp.where(waits, o, n) if jnp.issubdtype(n.dtype, jnp.integer) else n

        return updates, jax.tree.map(choose, new, state)

    return Transformation(tx.init, update)
