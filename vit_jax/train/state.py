# SPDX-License-Identifier: Apache-2.0
"""The train state: everything that a step passes to the next."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from vit_jax.train.health.spikes import no_losses
from vit_jax.trees import PyTree


@flax.struct.dataclass
class TrainState:
    """State of training; fields are `Any` because shardings and abstract values fill them too.

    Attributes:
        step: int32 scalar, the number of steps done.
        params: tree of float32 arrays, whose leaves are named by '/'-joined paths.
        model_state: Flax's other collections (BatchNorm's statistics); {} for most families.
        opt_state: optax's state.
        ema: exponential moving average of {"params": params, **model_state}, or None.
        rng: typed PRNG key; step s draws from fold_in(rng, s).
        losses: the recent ones, by which a spike is judged; None unless faults.skip_spikes.
        objective: the objective's own state, or None.
    """

    step: Any
    params: Any
    model_state: Any
    opt_state: Any
    ema: Any
    rng: Any
    losses: Any = None
    objective: Any = None


def make_state(
    params: PyTree,
    model_state: PyTree,
    rng: jax.Array,
    tx: optax.GradientTransformation,
    *,
    with_ema: bool,
    skip_spikes: bool = False,
    objective: PyTree = None,
) -> TrainState:
    """Build the state of step 0 around a model's variables; pure."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        model_state=model_state,
        opt_state=tx.init(params),
        # A copy: donation forbids one buffer in two places.
        ema=jax.tree.map(jnp.copy, {"params": params, **model_state}) if with_ema else None,
        rng=rng,
        losses=no_losses() if skip_spikes else None,
        objective=objective,
    )


def make_init(
    init_model: Callable[[jax.Array], tuple[PyTree, PyTree]],
    tx: optax.GradientTransformation,
    *,
    with_ema: bool,
    skip_spikes: bool = False,
    init_objective: Callable[[jax.Array], PyTree] = lambda key: None,
) -> Callable[[jax.Array], TrainState]:
    """Build the pure function from a PRNG key to the state of step 0."""

    def init(key: jax.Array) -> TrainState:
        model_key, rng = jax.random.split(key)
        params, model_state = init_model(model_key)
        # A key of its own: the model's initial values are the same under every objective.
        objective = init_objective(jax.random.fold_in(model_key, 1))
        kept = {"with_ema": with_ema, "skip_spikes": skip_spikes, "objective": objective}
        return make_state(params, model_state, rng, tx, **kept)

    return init
