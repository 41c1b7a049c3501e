# SPDX-License-Identifier: Apache-2.0
"""Gradient transformations that treat every layer of a stacked parameter as a tensor of its own."""

import math
from collections.abc import Callable, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, ArrayLike, Float

from vit_jax import trees
from vit_jax.devices import sharding
from vit_jax.optim.rules import Values

Leaf = Float[Array, "..."]

# Rules are looked up by parameter name: `optax.partition` leaves holes in the tree of updates, so a
# tree of rules would not match it.


def _each_layer(name: str, fn: Callable[..., trees.PyTree]) -> Callable[..., trees.PyTree]:
    return jax.vmap(fn) if trees.is_stacked(name) else fn


def _where(mask: np.ndarray, yes: Callable[[], Leaf], no: Leaf) -> Leaf:
    if mask.all():
        return yes()
    return jnp.where(mask, yes(), no) if mask.any() else no


def _by_name(fn: Callable[[str, Leaf, Leaf], Leaf]) -> optax.GradientTransformation:
    """Map (name, update, parameter) to the new update."""
    return optax.stateless(lambda updates, params: trees.map_named(fn, updates, params))


def add_decay(
    weight_decay: ArrayLike | optax.Schedule, decayed: Values
) -> optax.GradientTransformation:
    """Add `weight_decay` times the parameter where `decayed`; a schedule keeps a count of steps."""
    if callable(weight_decay):
        return _scheduled(weight_decay, lambda now: add_decay(now, decayed))
    return _by_name(lambda name, u, p: _where(decayed[name], lambda: u + weight_decay * p, u))


def _scheduled(
    schedule: optax.Schedule, make: Callable[[Any], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Apply what `make` builds, without a state, of the schedule's value at the step."""

    def init(params: trees.PyTree) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(
        updates: trees.PyTree, state: Any, params: trees.PyTree | None = None
    ) -> tuple[trees.PyTree, optax.ScaleByScheduleState]:
        # The step counts though it be skipped, as in optax.scale_by_learning_rate.
        now = make(schedule(state.count))
        updates, _ = now.update(updates, optax.EmptyState(), params)
        return updates, optax.ScaleByScheduleState(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def scale_by_rates(
    schedule: optax.Schedule, late: optax.Schedule, names: Set[str]
) -> optax.GradientTransformation:
    """Multiply by minus the learning rate of the step, of the parameters `names` that of `late`."""

    def both(step: ArrayLike) -> Any:
        return schedule(step), late(step)

    def make(rates: tuple[Any, Any]) -> optax.GradientTransformation:
        return _by_name(lambda name, u, p: -rates[name in names] * u)

    return _scheduled(both, make)


def multiply(factors: Values) -> optax.GradientTransformation:
    """Multiply each layer's update by its factor."""
    return _by_name(lambda name, u, p: u if (factors[name] == 1).all() else u * factors[name])


def fill(mask: Values, value: float) -> optax.GradientTransformation:
    """Replace the updates of the masked layers, finite or not, by `value`."""
    return _by_name(lambda name, u, p: _where(mask[name], lambda: jnp.full_like(u, value), u))


def clip_norm(norm: float) -> optax.GradientTransformation:
    """Scale the updates down to a global norm of at most `norm`, by one factor as PyTorch does.

    A factor of 1 leaves every bit. `optax.clip_by_global_norm` divides every element, and XLA
    stores the quotients: a second gradient.
    """
    return optax.stateless(lambda updates, _: scale_to_norm(updates, norm, least=norm))


def global_norm(tree: trees.PyTree) -> jax.Array:
    """Return the norm of a tree as one vector.

    Within `sharding.whole_sums` every device sums over whole arrays, however they are cut.
    """
    if not sharding.sums_whole_arrays():
        return optax.tree.norm(tree)
    whole = PartitionSpec()
    return jax.shard_map(optax.tree.norm, in_specs=whole, out_specs=whole, check_vma=False)(tree)


def scale_to_norm(tree: trees.PyTree, norm: float, least: float = 1e-12) -> trees.PyTree:
    """Scale a tree to a global norm, as one vector; one shorter than `least` as if it were that."""
    by = norm / jnp.maximum(global_norm(tree), least)
    return jax.tree.map(lambda leaf: leaf * by, tree)


def scale_by_layer_trust_ratio(
    adapted: Values, coefficient: float = 1.0
) -> optax.GradientTransformation:
    """Scale each `adapted` layer's update to its parameter's norm (LAMB, arXiv 1904.00962, alg. 2).

    LARS (arXiv 1708.03888, eq. 6) scales it to the `coefficient` times that.

    As in TensorFlow Addons, NVIDIA's FusedLAMB and timm, and unlike `optax.lamb`, biases and norms
    without decay keep Adam's step. At a weight decay of 0 FusedLAMB and timm adapt no layer; this
    transformation still adapts the same ones.
    """
    ratio = optax.scale_by_trust_ratio(trust_coefficient=coefficient)

    def one(u: Leaf, p: Leaf) -> Leaf:
        return ratio.update(u, optax.EmptyState(), p)[0]  # pyright: ignore[reportReturnType]

    return _by_name(
        lambda name, u, p: _where(adapted[name], lambda: _each_layer(name, one)(u, p), u)
    )


def scale_by_matrix_size(rms: float) -> optax.GradientTransformation:
    """Scale orthogonal (in, out) matrices, the last two axes, to a root mean square of `rms`.

    It is 1 / sqrt(max(in, out)) before (arXiv 2502.16982, sec. 2.2).
    """
    return _by_name(lambda name, u, p: u * (rms * math.sqrt(max(u.shape[-2:]))))


def scale_by_layer_factored_rms(
    *, decay_rate: float, beta2_cap: float, min_dim_size_to_factor: int
) -> optax.GradientTransformation:
    """Divide by the root of Adafactor's second moment (arXiv 1804.04235, alg. 4), layer by layer.

    `optax.scale_by_factored_rms` on a stack could factor the depth axis. The state is a
    FactoredState: `v_row` and `v_col`, each without one of the parameter's axes, for a layer of at
    least two dims of `min_dim_size_to_factor`; else `v` of the parameter's shape. An unused moment
    is no leaf (optax keeps one of shape (1,)).

    Args:
        decay_rate: r of the second moment's decay at update t = 1, 2, ...: 1 - t ** -r.
        beta2_cap: the largest that decay gets (arXiv 2106.04560, sec. 3.4).
        min_dim_size_to_factor: smaller dims are not factored.
    """

    def decay(i: Any, r: Any) -> Leaf:
        return jnp.minimum(beta2_cap, 1 - (jnp.asarray(i) + 1.0) ** -jnp.asarray(r))

    rms = optax.scale_by_factored_rms(
        decay_rate=decay_rate, min_dim_size_to_factor=min_dim_size_to_factor, decay_rate_fn=decay
    )

    def gather(count: Any, states: dict[str, Any], params: trees.PyTree) -> optax.FactoredState:
        def moment(field: str, factored: bool) -> trees.PyTree:
            def pick(name: str, p: Any) -> Any:
                dims = p.shape[1:] if trees.is_stacked(name) else p.shape
                is_factored = len(dims) > 1 and sorted(dims)[-2] >= min_dim_size_to_factor
                used = is_factored == factored
                return getattr(states[name], field) if used else optax.MaskedNode()

            return trees.map_named(pick, params)

        moments = (moment("v_row", True), moment("v_col", True), moment("v", False))
        return optax.FactoredState(count, *moments)

    def init(params: trees.PyTree) -> optax.FactoredState:
        states = {name: _each_layer(name, rms.init)(p) for name, p in trees.named_leaves(params)}
        return gather(jnp.zeros([], jnp.int32), states, params)

    def update(
        updates: trees.PyTree, state: Any, params: trees.PyTree | None = None
    ) -> tuple[trees.PyTree, optax.FactoredState]:
        def one(g: Any, p: Any, *moments: Any) -> Any:
            return rms.update(g, optax.FactoredState(state.count, *moments), p)

        old = [dict(trees.named_leaves(tree)) for tree in (state.v_row, state.v_col, state.v)]
        results = {}
        by_name = dict(trees.named_leaves(params))
        for name, g in trees.named_leaves(updates):
            moments = (tree.get(name) for tree in old)  # None where it is not in use
            results[name] = _each_layer(name, one)(g, by_name[name], *moments)
        states = {name: new for name, (_, new) in results.items()}
        count = optax.safe_increment(state.count)
        new_updates = trees.map_named(lambda name, _: results[name][0], updates)
        return new_updates, gather(count, states, params)

    return optax.GradientTransformation(init, update)
