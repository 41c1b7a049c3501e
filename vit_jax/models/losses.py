# SPDX-License-Identifier: Apache-2.0
"""The loss of one example, for training and evaluation alike."""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Loss(enum.StrEnum):
    """Which cross-entropy: big_vision's `softmax_xent` and `sigmoid_xent`, and timm's BCE."""

    SOFTMAX = "softmax"  # against a distribution over the classes
    SIGMOID = "sigmoid"  # a binary one per class, summed over the classes
    BCE = "bce"  # a binary one per class, their mean over the classes


def example_loss(
    logits: Float[Array, "B K"],
    targets: Float[Array, "B K"],
    loss: Loss,
    known: Float[Array, "B K"] | None = None,
) -> Float[Array, " B"]:
    """Return the loss of every example, in nats, for targets in [0, 1].

    `known`, 1 or 0, leaves out classes of an example that nobody knows of, but of softmax.
    """
    if loss is Loss.SOFTMAX:
        return -jnp.sum(targets * jax.nn.log_softmax(logits, axis=-1), axis=-1)
    positive, negative = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    terms = targets * positive + (1 - targets) * negative
    if known is not None:
        total = (terms * known).sum(axis=-1)
        return -(total / jnp.maximum(known.sum(axis=-1), 1) if loss is Loss.BCE else total)
    return -(terms.mean(axis=-1) if loss is Loss.BCE else terms.sum(axis=-1))
