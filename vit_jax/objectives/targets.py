# SPDX-License-Identifier: Apache-2.0
"""A teacher's targets: centred (DINO, arXiv:2104.14294) or balanced (SwAV, arXiv:2006.09882).

All functions see the global batch, so their result does not depend on how many devices hold it, and
compute in float32. No gradient passes through them: a teacher is not trained.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import entr, logsumexp
from jaxtyping import Array, Float, Float32, Num

Scalar = float | Float[Array, ""]
Centre = Float[Array, " K"] | Float[Array, "1 K"]
Weights = Num[Array, " N"] | None


def softmax_targets(
    logits: Float[Array, "*rows K"], centre: Centre, temperature: Scalar
) -> Float32[Array, "*rows K"]:
    """Return softmax((logits - centre) / temperature); DINO, equation 1 and section 3.1."""
    shift = _fixed(centre).reshape((1,) * (logits.ndim - 1) + (-1,))
    return jax.nn.softmax((_fixed(logits) - shift) / temperature, axis=-1)


def updated_centre(
    centre: Centre, logits: Float[Array, "N K"], momentum: Scalar, weights: Weights = None
) -> Centre:
    """Move the centre towards the mean of the rows: m c + (1 - m) mean; DINO, equation 4.

    Weights of 0 leave rows out. Without any row the centre stays.
    """
    before = _fixed(centre)
    after = momentum * before + (1 - momentum) * _mean(logits, weights).reshape(centre.shape)
    if weights is None:
        return after
    return jnp.where(weights.sum() > 0, after, before)


def sinkhorn(
    logits: Float[Array, "N K"], temperature: Scalar, iterations: int = 3, weights: Weights = None
) -> Float32[Array, "N K"]:
    """Return targets that use all K prototypes about equally, by the algorithm of Sinkhorn-Knopp.

    From Q = exp(logits / temperature), divided by its sum, each iteration divides each prototype by
    its sum over the rows and by K, then each row by its sum over the prototypes and by N. The
    result is N Q, so that each row sums to 1 (SwAV, appendix A; DINOv2, arXiv:2304.07193,
    section 4). The potentials of rows and prototypes are kept instead of Q, as logarithms, so that
    no logit is too large; the divisions by K, N and the first sum cancel.

    Args:
        logits: one row for each example or patch.
        temperature: the teacher's.
        iterations: at least 1.
        weights: 1, or 0 for a row that only fills a buffer: it takes no part and its target is 0.
    """
    taken = jnp.ones(logits.shape[:1], bool) if weights is None else weights > 0
    # What fills a buffer may be anything, also NaN.
    scores = jnp.where(taken[:, None], _fixed(logits) / temperature, 0.0)
    row = jnp.zeros(len(scores))
    prototype = jnp.zeros(scores.shape[1])
    for _ in range(iterations):
        row = jnp.where(taken, row, -jnp.inf)
        prototype = -logsumexp(scores + row[:, None], axis=0)
        row = -logsumexp(scores + prototype[None], axis=1)
    return jnp.where(taken[:, None], jnp.exp(scores + prototype[None] + row[:, None]), 0.0)


def target_entropy(targets: Float[Array, "N K"], weights: Weights = None) -> Float32[Array, ""]:
    """Return the mean entropy of single targets, in nats: log K where the teacher is uniform."""
    return _mean(entr(_fixed(targets)).sum(axis=-1, keepdims=True), weights)[0]


def marginal_entropy(targets: Float[Array, "N K"], weights: Weights = None) -> Float32[Array, ""]:
    """Return the entropy of the mean target, in nats: 0 where one prototype takes all."""
    return entr(_mean(targets, weights)).sum()


def _mean(rows: Float[Array, "N K"], weights: Weights) -> Float32[Array, " K"]:
    """Return the weighted mean of the rows; 0 if all weights are."""
    rows = _fixed(rows)
    if weights is None:
        return rows.mean(axis=0)
    share = weights.astype(jnp.float32)
    share /= jnp.where(share.sum() > 0, share.sum(), 1.0)
    return jnp.where(share[:, None] > 0, share[:, None] * rows, 0.0).sum(axis=0)


def _fixed(x: Float[Array, "*any"]) -> Float32[Array, "*any"]:
    return jax.lax.stop_gradient(x.astype(jnp.float32))
