# SPDX-License-Identifier: Apache-2.0
"""optax's Adam, momentum and SAM that skip a bad step themselves and update state in place.

The training step keeps the old state where a loss or a gradient is not finite. With optax's own
forms a parameter's update is made of moments that are never stored: XLA computes them anew from the
old ones, which it must copy first, since the new ones are written over them. Here the choice is
part of the moment, and the update is made of what is stored: every array changes in place. The
numbers are optax's, bit for bit.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from vit_jax import trees

IsFinite = Callable[[], jax.Array]
# From gradients, state, parameters and `is_finite` to updates and the new state.
Update = Callable[[trees.PyTree, Any, trees.PyTree | None, IsFinite | None], tuple[Any, Any]]


def _transformation(init: Any, step: Update) -> optax.GradientTransformationExtraArgs:
    """Build a transformation whose `update` takes `is_finite`, and ignores other arguments."""

    def update(
        updates: trees.PyTree,
        state: Any,
        params: trees.PyTree | None = None,
        *,
        is_finite: IsFinite | None = None,
        **_: Any,
    ) -> tuple[trees.PyTree, Any]:
        return step(updates, state, params, is_finite)

    return optax.GradientTransformationExtraArgs(init, update)


def _choose(is_finite: IsFinite | None, new: trees.PyTree, old: trees.PyTree) -> trees.PyTree:
    """Return the new moments in their own dtype, or the old ones where the step does not count."""
    if is_finite is None:
        return new
    finite = is_finite()
    return jax.tree.map(lambda n, o: jnp.where(finite, n, o.astype(n.dtype)), new, old)


def kept(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Keep the state of `tx`, all but its counters, where `is_finite` gives False.

    Counters go on: the schedule is a function of the step, skipped or not.
    """

    def step(updates: Any, state: Any, params: Any, is_finite: IsFinite | None) -> tuple[Any, Any]:
        updates, new = tx.update(updates, state, params)
        if is_finite is None:
            return updates, new
        finite = is_finite()
        return updates, jax.tree.map(
            lambda n, o: n if jnp.issubdtype(n.dtype, jnp.integer) else jnp.where(finite, n, o),
            new,
            state,
        )

    return _transformation(tx.init, step)


def scale_by_adam(
    b1: float, b2: float, eps: float, mu_dtype: Any
) -> optax.GradientTransformationExtraArgs:
    """Build `optax.scale_by_adam`, with its state, which it keeps as `kept` does."""

    def step(updates: Any, state: Any, params: Any, is_finite: IsFinite | None) -> tuple[Any, Any]:
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        mu, nu = _choose(is_finite, (mu, nu), (state.mu, state.nu))
        count = optax.safe_increment(state.count)
        updates = jax.tree.map(
            lambda m, v: m / (jnp.sqrt(v) + eps),
            optax.tree.bias_correction(mu, b1, count),
            optax.tree.bias_correction(nu, b2, count),
        )
        mu = optax.tree.cast(mu, mu_dtype)
        return updates, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return _transformation(optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype).init, step)


def momentum(
    decay: float, nesterov: bool, accumulator_dtype: Any
) -> optax.GradientTransformationExtraArgs:
    """Build `optax.trace`, with its state, which it keeps as `kept` does."""

    def add(updates: trees.PyTree, trace: trees.PyTree) -> trees.PyTree:
        return jax.tree.map(lambda u, t: u + decay * t, updates, trace)

    def step(updates: Any, state: Any, params: Any, is_finite: IsFinite | None) -> tuple[Any, Any]:
        del params
        trace = _choose(is_finite, add(updates, state.trace), state.trace)
        updates = add(updates, trace) if nesterov else trace
        return updates, optax.TraceState(trace=optax.tree.cast(trace, accumulator_dtype))

    return _transformation(optax.trace(decay, nesterov, accumulator_dtype).init, step)


def not_debiased(muon: optax.GradientTransformation) -> optax.GradientTransformation:
    """Build `optax.contrib.scale_by_muon` with moments that are not corrected for their start.

    The correction is 1 - beta ** count, so it is 1 where the count is as large as can be.
    """

    def update(
        updates: trees.PyTree, state: Any, params: trees.PyTree | None = None
    ) -> tuple[trees.PyTree, Any]:
        late = state._replace(count=jnp.full_like(state.count, jnp.iinfo(state.count.dtype).max))
        updates, new = muon.update(updates, late, params)
        count = optax.safe_increment(state.count)
        return updates, cast(Any, new)._replace(count=count)

    return optax.GradientTransformation(muon.init, update)


def sharpness_aware(
    tx: optax.GradientTransformation, climb: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    """Build `optax.contrib.sam` of two passes with its state, handing `tx` the extra arguments.

    `update` needs `grad_fn`: (params, pass) -> the gradient there, of which the step is made.
    """
    tx = optax.with_extra_args_support(tx)

    def init(params: trees.PyTree) -> Any:
        steps = jnp.zeros((), jnp.int32)
        return optax.contrib.SAMState(steps, tx.init(params), climb.init(params), None)

    def update(
        updates: trees.PyTree,
        state: Any,
        params: trees.PyTree | None = None,
        *,
        grad_fn: Callable[[trees.PyTree, int], trees.PyTree] | None = None,
        **extra: Any,
    ) -> tuple[trees.PyTree, Any]:
        if grad_fn is None:
            raise ValueError("SAM takes a second gradient: update(..., grad_fn=...)")
        down, _ = climb.update(updates, state.adv_state, params)
        uphill = jax.tree.map(lambda p, d: p - d, params, down)
        updates, opt_state = tx.update(grad_fn(uphill, 0), state.opt_state, params, **extra)
        # The counter, always 0, is handed on: a new 0 would need memory beside the old one's.
        return updates, state._replace(opt_state=opt_state)

    return optax.GradientTransformationExtraArgs(init, update)
