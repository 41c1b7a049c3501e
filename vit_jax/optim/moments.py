# SPDX-License-Identifier: Apache-2.0
"""optax's Adam and momentum that skip a bad step themselves and update state in place.

A step that is skipped keeps the old state. With optax's own forms a parameter's update reads
moments that are never stored: XLA recomputes them from the old ones, which it must copy before it
overwrites them. Here each moment is chosen, old or new, before the update reads it, so every array
changes in place. The numbers are optax's, bit for bit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax.trees import PyTree

IsValid = jax.Array | bool  # a scalar
Transformation = optax.GradientTransformationExtraArgs


def _transformation(init: Any, step: Callable[..., tuple[PyTree, Any]]) -> Transformation:
    """Build a transformation that passes `is_valid` to `step` and ignores other arguments."""

    def update(
        updates: PyTree, state: Any, params: Any = None, *, is_valid: IsValid = True, **_: Any
    ) -> tuple[PyTree, Any]:
        return step(updates, state, params, is_valid)

    return Transformation(init, update)


def _choose(is_valid: IsValid, new: PyTree, old: PyTree) -> PyTree:
    """Return the new state, or on a skipped step the old one in its dtypes, except counters.

    Counters, its integers, always advance: the schedule is a function of the step, skipped or not.
    """

    def choose(n: jax.Array, o: jax.Array) -> jax.Array:
        is_counter = jnp.issubdtype(n.dtype, jnp.integer)
        return n if is_counter else jnp.where(is_valid, n, o.astype(n.dtype))

    return jax.tree.map(choose, new, old)


def kept(tx: optax.GradientTransformation) -> Transformation:
    """Keep the state of `tx`, except its counters, where `is_valid` is False."""

    def step(updates: Any, state: Any, params: Any, is_valid: IsValid) -> tuple[Any, Any]:
        updates, new = tx.update(updates, state, params)
        return updates, _choose(is_valid, new, state)

    return _transformation(tx.init, step)


def scale_by_adam(
    b1: float, b2: float, eps: float, mu_dtype: Any, *, nesterov: bool = False
) -> Transformation:
    """Build `optax.scale_by_adam`, its state included, which a skipped step keeps as in `kept`.

    With `nesterov` the step takes b1 m + (1 - b1) g in place of m, corrected as m is: timm's
    NAdamW, and not Dozat's, whose two terms have corrections of their own.
    """

    def step(updates: Any, state: Any, _: Any, is_valid: IsValid) -> tuple[Any, Any]:
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        mu, nu = _choose(is_valid, (mu, nu), (state.mu, state.nu))
        count = optax.safe_increment(state.count)
        ahead = optax.tree.update_moment(updates, mu, b1, 1) if nesterov else mu
        mu_hat = optax.tree.bias_correction(ahead, b1, count)
        nu_hat = optax.tree.bias_correction(nu, b2, count)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu_hat, nu_hat)
        return updates, optax.ScaleByAdamState(count, optax.tree.cast(mu, mu_dtype), nu)

    return _transformation(optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype).init, step)


def momentum(decay: float, nesterov: bool, accumulator_dtype: Any) -> Transformation:
    """Build `optax.trace`, its state included, which a skipped step keeps as in `kept`."""

    def add(updates: PyTree, trace: PyTree) -> PyTree:
        return jax.tree.map(lambda u, t: u + decay * t, updates, trace)

    def step(updates: Any, state: Any, _: Any, is_valid: IsValid) -> tuple[Any, Any]:
        trace = _choose(is_valid, add(updates, state.trace), state.trace)
        updates = add(updates, trace) if nesterov else trace
        return updates, optax.TraceState(trace=optax.tree.cast(trace, accumulator_dtype))

    return _transformation(optax.trace(decay, nesterov, accumulator_dtype).init, step)


def not_debiased(muon: optax.GradientTransformation) -> optax.GradientTransformation:
    """Build `optax.contrib.scale_by_muon` with moments that are not corrected for their start.

    The correction is 1 - beta ** count, which the largest count makes 1.
    """

    def update(updates: PyTree, state: Any, params: PyTree | None = None) -> tuple[PyTree, Any]:
        late = state._replace(count=jnp.full_like(state.count, jnp.iinfo(state.count.dtype).max))
        new: Any
        updates, new = muon.update(updates, late, params)
        return updates, new._replace(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(muon.init, update)


def wrapped(tx: optax.GradientTransformation) -> Transformation:
    """Keep the state of `tx` inside an `optax.contrib.SAMState`, as checkpoints of SAM have it.

    Before `climb` (optim/build.py) optax's form made the second gradient, from its own state.
    """
    tx = optax.with_extra_args_support(tx)

    def init(params: PyTree) -> Any:
        nothing = (optax.EmptyState(), optax.EmptyState())
        return optax.contrib.SAMState(jnp.zeros((), jnp.int32), tx.init(params), nothing, None)

    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, Any]:
        updates, inner = tx.update(updates, state.opt_state, params, **extra)
        # The counter, always 0, is passed on: a new 0 would need memory beside the old one's.
        return updates, state._replace(opt_state=inner)

    return Transformation(init, update)
