# SPDX-License-Identifier: Apache-2.0
"""The training step: one pure function of (state, frozen, batch), jitted over the mesh."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.devices import sharding
from vit_jax.devices.hardware import compiler_options
from vit_jax.models.layers import dense
from vit_jax.objectives import Aux, Batch, Context, Objective
from vit_jax.optim import Climb, transforms
from vit_jax.train.health import spikes
from vit_jax.train.state import TrainState
from vit_jax.trees import PyTree

Loss = Callable[[PyTree, Context, Batch, jax.Array], tuple[Any, Aux]]  # `Objective.loss`
Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, PyTree, Batch], tuple[TrainState, Metrics]]


def _micro_batches(batch: Batch, count: int) -> Batch:
    """Split [B, ...] into [count, B/count, ...].

    Micro-batch i takes the examples i, i + count, ...: none moves to another device.
    """

    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1)
        return sharding.constrain(x, None, sharding.BATCH_AXES)

    return {key: split(x) for key, x in batch.items()}


def _mean_gradient(
    loss_of: Loss,
    state: TrainState,
    frozen: PyTree,
    batch: Batch,
    rng: jax.Array,
    count: int,
    reduce_dtype: dense.ReduceDType,
    shards: int,
) -> tuple[PyTree, Aux]:
    """Average gradient and metrics over `count` micro-batches, holding one gradient at a time.

    With `shards` over these instead, whose bits no number of devices changes.
    """

    def loss(params: PyTree, read: Any, carried: Any, batch: Batch, rng: jax.Array) -> Any:
        (frozen, ema, step), (model_state, own) = read, carried
        ctx = Context(frozen=frozen, model_state=model_state, ema=ema, objective=own, step=step)
        with dense.summing_in(reduce_dtype):
            return loss_of(params, ctx, batch, rng)

    differentiate = jax.value_and_grad(loss, has_aux=True)
    read, before = (frozen, state.ema, state.step), (state.model_state, state.objective)
    if shards:
        from vit_jax.train import reproducible  # late: most runs cut no batch

        def of_shard(whole: PyTree, batch: Batch, i: jax.Array) -> tuple[PyTree, Metrics]:
            read, key = (whole["frozen"], None, whole["step"]), jax.random.fold_in(whole["rng"], i)
            (_, aux), grads = differentiate(whole["params"], read, before, batch, key)
            return grads, aux.metrics

        whole = {"params": state.params, "frozen": frozen, "step": state.step, "rng": rng}
        grads, metrics = reproducible.mean(of_shard, whole, batch, shards, state.step)
        return grads, Aux(metrics, *before)
    if count == 1:
        (_, aux), grads = differentiate(state.params, read, before, batch, rng)
        return grads, aux

    def body(carry: Any, xs: Any) -> tuple[Any, Metrics]:
        total, carried = carry
        micro, i = xs
        key = jax.random.fold_in(rng, i)
        (_, aux), grads = differentiate(state.params, read, carried, micro, key)
        carried = (aux.model_state, aux.objective)
        return (jax.tree.map(jnp.add, total, grads), carried), aux.metrics

    zeros = jax.tree.map(jnp.zeros_like, state.params)
    (total, carried), metrics = jax.lax.scan(
        body, (zeros, before), (_micro_batches(batch, count), jnp.arange(count))
    )
    # Multiply: for a division XLA would keep a second copy of the sum.
    grads = jax.tree.map(lambda g: g * (1 / count), total)
    return grads, Aux(jax.tree.map(lambda m: m.mean(axis=0), metrics), *carried)


def _is_finite(tree: PyTree) -> jax.Array:
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.asarray(leaves, bool).all()


def make_train_step(
    objective: Objective,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    accum_steps: int = 1,
    ema_decay: float | optax.Schedule = 0.0,
    spike_sigmas: float = 0.0,
    reduce_dtype: dense.ReduceDType = dense.ReduceDType.FLOAT32,
    climb: Climb | None = None,
    shards: int = 0,
    constant: Callable[[PyTree], PyTree] | None = None,
) -> TrainStep:
    """Build the step; jit it with `jit_step`. No gradient is computed of what is `constant`.

    With `shards` (`mesh.reproducible`) its bits are those of every number of devices: what is
    summed over examples is summed along one tree, and all else is a program of its own.

    A step is skipped, which changes only counters, if its loss, gradient, model state or
    objective's state is not finite (`nonfinite` is 1), and, where the state keeps recent losses, if
    its loss is a spike by `spike_sigmas` (`spikes` is 1; the loss still enters those kept).
    Metrics are float32 scalars, means over the global batch, at the parameters. With a `climb` the
    optimizer gets the gradient at the place that it goes to, and `grad_norm` is of that one.
    """
    optimizer = optax.with_extra_args_support(tx)  # of `is_valid`
    apart = sharding.apart if shards else lambda _, compute, *args: compute(*args)

    def loss(params: PyTree, *rest: Any) -> Any:
        return objective.loss(params if constant is None else constant(params), *rest)

    @sharding.whole_sums(shards > 0)
    def train_step(state: TrainState, frozen: PyTree, batch: Batch) -> tuple[TrainState, Metrics]:
        mix_rng, loss_rng = jax.random.split(jax.random.fold_in(state.rng, state.step))
        batch = apart(state.step, objective.prepare, batch, mix_rng)

        def at(params: PyTree) -> tuple[PyTree, Aux, jax.Array, jax.Array]:
            """Return the gradient, what the loss returned, the norm, and whether all is finite."""
            here = dataclasses.replace(state, params=params)
            grads, aux = _mean_gradient(
                loss, here, frozen, batch, loss_rng, accum_steps, reduce_dtype, shards
            )
            # The norm stands for all gradients. Model state too: an overflowing variance divides
            # activations to 0 at a finite loss.
            norm = apart(state.step, transforms.global_norm, grads)
            seen = (norm, aux.metrics["loss"], aux.model_state, aux.objective)
            return grads, aux, norm, _is_finite(seen)

        grads, aux, norm, finite = at(state.params)
        if climb is not None:  # with the same dropout masks
            uphill = jax.tree.map(
                jnp.add, state.params, apart(state.step, climb, grads, state.step)
            )
            grads, _, norm, also_finite = at(uphill)
            finite &= also_finite
        return apart(state.step, updated, state, grads, aux, norm, finite)

    def updated(
        state: TrainState, grads: PyTree, aux: Aux, grad_norm: jax.Array, finite: jax.Array
    ) -> tuple[TrainState, Metrics]:
        """Return the state after the step, and its metrics."""
        metrics, model_state, own = dict(aux.metrics), aux.model_state, aux.objective
        valid, losses = finite, None
        if state.losses is not None:
            spike, losses = spikes.judge(state.losses, metrics["loss"], spike_sigmas)
            metrics["spikes"] = spike.astype(jnp.float32)
            valid = finite & ~spike
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, is_valid=valid)

        def if_valid(new: PyTree, old: PyTree) -> PyTree:
            return jax.tree.map(lambda n, o: jnp.where(valid, n, o), new, old)

        # The optimizer itself keeps its state in a skipped step: see `optim.moments`.
        moved = objective.bounded(optax.apply_updates(state.params, updates))
        params = if_valid(moved, state.params)
        model_state = if_valid(model_state, state.model_state)
        own = if_valid(own, state.objective)
        ema = None
        if state.ema is not None:
            # BatchNorm's statistics are averaged too, as in timm's ModelEma.
            variables = {"params": params, **model_state}
            share = 1 - (ema_decay(state.step) if callable(ema_decay) else ema_decay)
            ema = if_valid(optax.incremental_update(variables, state.ema, share), state.ema)
        metrics |= {
            "lr": jnp.asarray(schedule(state.step), jnp.float32),
            "grad_norm": grad_norm,
            "nonfinite": 1 - finite.astype(jnp.float32),
        }
        new = {"params": params, "model_state": model_state, "opt_state": opt_state, "ema": ema}
        state = dataclasses.replace(state, step=state.step + 1, losses=losses, objective=own, **new)
        return state, metrics

    return train_step


def jit_step(
    step: TrainStep,
    state_shardings: TrainState,
    frozen_shardings: PyTree,
    mesh: Mesh,
    shards: int = 0,
) -> TrainStep:
    """Jit the step, made with `shards`, for the mesh; the state's buffers are donated."""
    has_batch_norm = bool(state_shardings.model_state)
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        step,
        in_shardings=(state_shardings, frozen_shardings, sharding.batch_sharding(mesh)),
        out_shardings=(state_shardings, replicated),
        donate_argnums=0,
        compiler_options=compiler_options(mesh, has_batch_norm, reproducible=shards > 0),
    )
