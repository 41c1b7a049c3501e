# SPDX-License-Identifier: Apache-2.0
"""The terms of self-distillation: DINO, iBOT and KoLeo, as DINOv2 adds them (arXiv:2304.07193).

All functions see the global batch, so their result does not depend on how many devices hold it, and
compute in float32.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Num

Scalar = float | Float[Array, ""]

_EXACT = jax.lax.Precision.HIGHEST


def dino_loss(
    student: Float[Array, "S B K"],
    targets: Float[Array, "T B K"],
    temperature: Scalar,
    *,
    skip_same: bool,
) -> Float32[Array, ""]:
    """Return the mean cross-entropy, in nats, over all pairs of a student's and a teacher's crop.

    The loss of a pair is -sum_k t_k log softmax(s / temperature)_k, averaged over the images (DINO,
    arXiv:2104.14294, equation 3).

    Args:
        student: logits of S crops of each image.
        targets: of T crops of the same images; no gradient passes through them.
        temperature: the student's.
        skip_same: leave out the pairs with equal index, whose crop is the same.

    Raises ValueError: no pair is left.
    """
    pairs = 1 - jnp.eye(len(student), len(targets)) if skip_same else 1.0
    count = len(student) * len(targets) - skip_same * min(len(student), len(targets))
    if not count:
        raise ValueError("one crop of the student and the same of the teacher make no pair")
    log_p = _log_softmax(student, temperature)
    agreement = jnp.einsum("sbk,tbk->st", log_p, _fixed(targets), precision=_EXACT)
    return -(pairs * agreement).sum() / (count * student.shape[1])


def ibot_loss(
    student: Float[Array, "M K"],
    targets: Float[Array, "M K"],
    weights: Float[Array, " M"],
    temperature: Scalar,
    num_images: int | Num[Array, ""],
) -> Float32[Array, ""]:
    """Return the cross-entropy of masked patches, in nats, their mean of each image over images.

    It is the weighted sum of -sum_k t_k log softmax(s / temperature)_k, divided by the number of
    images (iBOT, arXiv:2111.07832, equation 2, with the mean that its code takes of each image).

    Args:
        student: logits of masked patches, of all images in one buffer.
        targets: of the same patches; no gradient passes through them.
        weights: 1 / (number of patches masked in its image), and 0 for what fills the buffer.
        temperature: the student's.
        num_images: all images of the batch, those without a masked patch too.
    """
    entropies = -(_fixed(targets) * _log_softmax(student, temperature)).sum(axis=-1)
    return (_fixed(weights) * entropies).sum() / num_images


def koleo(features: Float[Array, "B D"], eps: float = 1e-8) -> Float32[Array, ""]:
    """Return the Kozachenko-Leonenko regulariser, small where features spread over the sphere.

    It is -mean log(|x_i - x_j + eps| + eps), with x of unit length and x_j the nearest to x_i among
    the others (arXiv:1806.03198, section 3.2; DINOv2, section 4). A gradient passes through both,
    none through the choice. An example alone in its batch is its own neighbour.
    """
    # Differs from paper: DINOv2's code seeks a neighbour in one device's share of the batch.
    x = features.astype(jnp.float32)
    # A maximum inside the root: the gradient of a root at 0 is infinite.
    x /= jnp.sqrt(jnp.maximum((x * x).sum(axis=-1, keepdims=True), eps**2))
    unit = jax.lax.stop_gradient(x)
    similarity = jnp.matmul(unit, unit.T, precision=_EXACT)
    itself = jnp.eye(len(unit), dtype=bool)
    nearest = jnp.where(itself, -jnp.inf, similarity).argmax(axis=-1)
    apart = x - x[nearest] + eps
    distance = jnp.sqrt(jnp.maximum((apart * apart).sum(axis=-1), jnp.finfo(jnp.float32).tiny))
    return -jnp.log(distance + eps).mean()


def feature_rank(features: Float[Array, "B D"]) -> Float32[Array, ""]:
    """Return the participation ratio (tr C)^2 / tr(C^2) of the features' covariance C.

    It is 1 where all features lie on a line, D where they vary alike in all directions (Gao et al.
    2017, doi:10.1101/214262), and 0 where they are equal.
    """
    x = features.astype(jnp.float32)
    x -= x.mean(axis=0, keepdims=True)
    trace = (x * x).sum()
    # The matrices of products over examples and over channels have the same trace of the square.
    rows = x if len(x) < x.shape[1] else x.T
    share = jnp.matmul(rows, rows.T, precision=_EXACT) / jnp.where(trace > 0, trace, 1.0)
    return jnp.where(trace > 0, 1 / jnp.where(trace > 0, (share * share).sum(), 1.0), 0.0)


def _log_softmax(logits: Float[Array, "*rows K"], temperature: Scalar) -> Float32[Array, "*rows K"]:
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)


def _fixed(x: Float[Array, "*any"]) -> Float32[Array, "*any"]:
    return jax.lax.stop_gradient(x.astype(jnp.float32))
