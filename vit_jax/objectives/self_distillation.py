# SPDX-License-Identifier: Apache-2.0
"""The terms of self-distillation's losses, in float32: pure functions of student and targets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_EPS = 1e-8


def dino_loss(
    student: Float[Array, "S B K"],
    targets: Float[Array, "T B K"],
    temperature: float,
    *,
    skip_same: bool,
) -> Float[Array, ""]:
    """Return the mean cross-entropy over pairs of crops and images (arXiv:2104.14294 eq. 2).

    Args:
        student: logits of S crops.
        targets: of T crops; no gradient goes there.
        temperature: of the student.
        skip_same: leave out the pairs of a crop with itself: crop s of both.
    """
    likely = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
    pairs = -jnp.einsum("sbk,tbk->st", likely, targets) / student.shape[1]
    if not skip_same:
        return pairs.mean()
    other = 1 - jnp.eye(pairs.shape[0], pairs.shape[1])
    return (pairs * other).sum() / other.sum()


def ibot_loss(
    student: Float[Array, "M K"],
    targets: Float[Array, "M K"],
    weights: Float[Array, " M"],
    temperature: float,
    num_images: int,
) -> Float[Array, ""]:
    """Return the cross-entropy of hidden patches: the mean of each image, over all images.

    arXiv:2111.07832 eq. 2, as DINOv2 weighs it: an image without a hidden patch counts as 0.

    Args:
        student: logits.
        targets: of the teacher, who sees the patches; no gradient goes there.
        weights: 1 / the number of hidden patches of the patch's image; 0 for padding.
        temperature: of the student.
        num_images: how many images there are.
    """
    likely = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
    return -((targets * likely).sum(axis=-1) * weights).sum() / num_images


def koleo(features: Float[Array, "B D"]) -> Float[Array, ""]:
    """Return minus the mean logarithm of the distance to the nearest other (arXiv:1806.03198).

    Features are L2-normalised; 1e-8 is added to each difference, as PyTorch's PairwiseDistance
    does, and to the distance.
    """
    wide = features.astype(jnp.float32)
    # Inside the root, for its gradient at zero.
    x = wide / jnp.sqrt(jnp.square(wide).sum(axis=-1, keepdims=True) + _EPS**2)
    near = jax.lax.stop_gradient(x)
    similar = near @ near.T - 4.0 * jnp.eye(len(x))
    other = x[similar.argmax(axis=1)]
    distance = jnp.sqrt(jnp.square(x - other + _EPS).sum(axis=-1))
    return -jnp.log(distance + _EPS).mean()


def feature_rank(features: Float[Array, "B D"]) -> Float[Array, ""]:
    """Return the participation ratio of the covariance C: (tr C)^2 / tr(C^2), from 1 to min(B, D).

    It falls towards 1 where the features collapse onto a line.
    """
    wide = jax.lax.stop_gradient(features).astype(jnp.float32)
    centred = wide - wide.mean(axis=0, keepdims=True)
    # The smaller of the two products has the same traces.
    small = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    return jnp.square(jnp.trace(small)) / jnp.maximum(jnp.square(small).sum(), 1e-30)
