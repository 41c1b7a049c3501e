# SPDX-License-Identifier: Apache-2.0
"""Attention by XLA's own matmuls, on any device, with explicit gradients that keep few arrays."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.devices import hardware


def attend(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    bias: Float[Array, "#B #h #N M"] | None,
) -> Float[Array, "B h N d"]:
    """Return softmax(q k^T + bias) v, for q with its scale; logits and softmax in float32."""
    # With a bias (Swin's windows) recomputing is slower: every matmul would read the bias too.
    if bias is None and hardware.target().platform == "tpu":
        return _recomputing(q, k, v)
    return _keeping(q, k, v, bias)


@jax.custom_vjp
def _keeping(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Attend and keep one [N, M] array for the backward pass, exp(logits - max) in v's dtype.

    The softmax's sum divides the [N, d] output and its gradient, not the [N, M] weights.
    """
    return _keeping_forward(q, k, v, bias)[0]


def _keeping_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    logits = _logits(q, k, bias)
    powers = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    inverse = 1 / powers.sum(axis=-1, keepdims=True)
    powers = powers.astype(v.dtype)
    out = jnp.matmul(powers, v, preferred_element_type=jnp.float32) * inverse
    out = out.astype(v.dtype)
    return out, (q, k, v, bias, powers, inverse, out)


def _keeping_backward(
    kept: tuple[Any, ...], dout: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    q, k, v, bias, powers, inverse, out = kept
    return _gradients(q, k, v, bias, powers, out, dout.astype(jnp.float32) * inverse)


_keeping.defvjp(_keeping_forward, _keeping_backward)


@jax.custom_vjp
def _recomputing(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attend and keep no [N, M] array; write none to memory in float32 either.

    A TPU multiplies q and k again in less time than it writes and reads their product. XLA fuses a
    matmul with the next operations only if nothing else reads its result, so each use of the logits
    has its own matmul: maximum, powers, backward pass. Barriers keep XLA from merging these.
    """
    return _recomputing_forward(q, k, v)[0]


def _recomputing_forward(
    q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, tuple[Any, ...]]:
    largest = _logits(q, k).max(axis=-1, keepdims=True)
    again, largest = jax.lax.optimization_barrier((q, largest))
    powers = jnp.exp(_logits(again, k) - largest)
    total = powers.sum(axis=-1, keepdims=True)
    out = jnp.matmul(powers.astype(v.dtype), v, preferred_element_type=jnp.float32) / total
    out = out.astype(v.dtype)
    return out, (q, k, v, largest + jnp.log(total), out)


def _recomputing_backward(
    kept: tuple[Any, ...], dout: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    q, k, v, log_total, out = kept
    again, log_total, dout = jax.lax.optimization_barrier((q, log_total, dout))
    weights = jnp.exp(_logits(again, k) - log_total).astype(v.dtype)
    weights = jax.lax.optimization_barrier(weights)  # for two matmuls: written once, narrow
    dq, dk, dv, _ = _gradients(q, k, v, None, weights, out, dout.astype(jnp.float32))
    return dq, dk, dv


_recomputing.defvjp(_recomputing_forward, _recomputing_backward)


def _logits(q: jax.Array, k: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    logits = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias


def _gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    weights: jax.Array,
    out: jax.Array,
    dout: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Return the gradients of q, k, v and the bias.

    Either `weights` (in v's dtype) or `dout` (the output's gradient, float32) has been divided by
    the softmax's sum.
    """
    mean = (dout * out).sum(axis=-1, keepdims=True)  # mean gradient of the weights
    dout = dout.astype(v.dtype)
    dv = jnp.matmul(weights.swapaxes(-1, -2), dout)
    dweights = jnp.matmul(dout, v.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    dlogits = weights * (dweights - mean)
    dbias = None if bias is None else _sum_to(dlogits, bias.shape).astype(bias.dtype)
    dlogits = dlogits.astype(q.dtype)
    return jnp.matmul(dlogits, k), jnp.matmul(dlogits.swapaxes(-1, -2), q), dv, dbias


def _sum_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Undo a broadcast from `shape`: sum over its axes of length 1."""
    axes = [axis for axis, size in enumerate(shape) if size == 1]
    return x.sum(axis=axes, keepdims=True)
