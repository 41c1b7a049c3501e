# SPDX-License-Identifier: Apache-2.0
"""What a teacher says of a batch, as distributions over prototypes, and how even they are.

All act on the global batch: the same on one device as on many.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def softmax_targets(
    logits: Float[Array, "M K"], centre: Float[Array, "K"], temperature: Float[Array, ""] | float
) -> Float[Array, "M K"]:
    """Return the softmax of the centred logits over the temperature (arXiv:2104.14294 eq. 1)."""
    return jax.nn.softmax((logits - centre[None]) / temperature, axis=-1)


def updated_centre(
    centre: Float[Array, "K"],
    logits: Float[Array, "M K"],
    momentum: float,
    weights: Float[Array, " M"] | None = None,
) -> Float[Array, "K"]:
    """Move the centre to the mean of the logits, by 1 - momentum of the way (eq. 4).

    `weights` are 1 for the rows that count and 0 for padding; without any row it stays.
    """
    if weights is None:
        return momentum * centre + (1 - momentum) * logits.mean(axis=0)
    total = weights.sum()
    mean = (logits * weights[:, None]).sum(axis=0) / jnp.maximum(total, 1)
    return jnp.where(total > 0, momentum * centre + (1 - momentum) * mean, centre)


def sinkhorn(
    logits: Float[Array, "M K"],
    temperature: Float[Array, ""] | float,
    iterations: int = 3,
    weights: Float[Array, " M"] | None = None,
) -> Float[Array, "M K"]:
    """Spread the rows evenly over the prototypes, by Sinkhorn-Knopp (arXiv:2006.09882 section 3.1).

    exp(logits / T) is scaled to a sum of 1; then, `iterations` times, each prototype to 1 / K and
    each row to 1 / M; the rows are returned times M, so that each sums to 1. It is done with
    logarithms, which no logit overflows.

    Args:
        logits: of the teacher.
        temperature: T.
        iterations: DINOv2 and v3 have 3.
        weights: 1 for the rows that count, 0 for padding, which becomes 0.
    """
    found = logits.astype(jnp.float32) / temperature
    real = jnp.ones(len(logits)) if weights is None else weights
    log_rows = jnp.log(jnp.maximum(real.sum(), 1))
    # A padded row is no mass: minus infinity would make NaN of inf - inf.
    found = jnp.where(real[:, None] > 0, found, _NONE)
    found = found - jax.nn.logsumexp(found)
    for _ in range(iterations):
        found = found - jax.nn.logsumexp(found, axis=0, keepdims=True) - jnp.log(found.shape[1])
        found = found - jax.nn.logsumexp(found, axis=1, keepdims=True) - log_rows
        found = jnp.where(real[:, None] > 0, found, _NONE)
    return jnp.exp(found + log_rows) * (real[:, None] > 0)


_NONE = -1e30  # the logarithm of nothing


def target_entropy(
    targets: Float[Array, "M K"], weights: Float[Array, " M"] | None = None
) -> Float[Array, ""]:
    """Return the mean entropy of the targets, in nats: log K where a teacher says nothing."""
    each = _entropy(targets)
    return (
        each.mean() if weights is None else (each * weights).sum() / jnp.maximum(weights.sum(), 1)
    )


def marginal_entropy(targets: Float[Array, "M K"]) -> Float[Array, ""]:
    """Return the entropy of the mean target, in nats: 0 where all images have one prototype."""
    return _entropy(targets.mean(axis=0))


def _entropy(p: Float[Array, "*lead K"]) -> Float[Array, "*lead"]:
    return -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0).sum(axis=-1)
