# SPDX-License-Identifier: Apache-2.0
"""A teacher's logits: of the student's images, and as a cache keeps them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float16, Float32, Int, UInt

from vit_jax import models
from vit_jax.distill.config import TeacherConfig

Teacher = Callable[[Any, Float[Array, "B H W C"]], Float[Array, "B K"]]

# A batch's arrays of cached logits: all of them in float16; or the largest, their classes, and the
# one logit that stands for each of the others.
LOGITS, TOP, INDEX, REST = "teacher_logits", "teacher_top", "teacher_index", "teacher_rest"


def make_teacher(
    cfg: TeacherConfig, mean: tuple[float, ...], std: tuple[float, ...], size: tuple[int, int]
) -> Teacher:
    """Build the teacher in evaluation mode, on images as the student gets them.

    They are resized (bicubic with antialiasing, as Pillow and timm) and normalised anew where the
    teacher's image size, mean or std is another; the order of the two makes no difference.

    Args:
        cfg: the teacher's model, mean and std.
        mean, std: what the student's images are normalised by.
        size: (height, width) of these.
    """
    module = models.create(cfg.teacher)
    height, width, channels = models.input_shape(cfg.teacher)

    def teacher(variables: Any, image: Float[Array, "B H W C"]) -> Float[Array, "B K"]:
        if (height, width) != size:
            shape = (image.shape[0], height, width, channels)
            image = jax.image.resize(image, shape, "cubic", antialias=True)
        image = _renormalize(image, (mean, std), (cfg.mean or mean, cfg.std or std))
        out: Any = module.apply(variables, image, train=False)
        return out.logits.astype(jnp.float32)

    return teacher


def _renormalize(
    image: Float[Array, "B H W C"],
    old: tuple[tuple[float, ...], tuple[float, ...]],
    new: tuple[tuple[float, ...], tuple[float, ...]],
) -> Float[Array, "B H W C"]:
    if old == new:
        return image
    shift, scale, mean, std = (
        jnp.asarray(value, jnp.float32).reshape(1, 1, 1, -1) for value in (*old, *new)
    )
    return (image * scale + shift - mean) / std


def compact(
    logits: Float[Array, "B K"], top_k: int, temperature: float = 1.0
) -> dict[str, jax.Array]:
    """Turn logits into what a cache keeps of them: all in float16, or the `top_k` largest.

    The others are one number, with which their softmax at the temperature sums to what it did.
    """
    if not top_k:
        return {LOGITS: logits.astype(jnp.float16)}
    top, index = jax.lax.top_k(logits, top_k)
    others = jnp.put_along_axis(logits, index, -jnp.inf, axis=-1, inplace=False)
    mean = jax.nn.logsumexp(others / temperature, axis=-1) - jnp.log(logits.shape[-1] - top_k)
    rest = temperature * mean
    return {TOP: top.astype(jnp.float16), INDEX: index, REST: rest}


def dense(
    top: Float16[Array, "B k"],
    index: Int[Array, "B k"] | UInt[Array, "B k"],
    rest: Float32[Array, " B"],
    num_classes: int,
) -> Float32[Array, "B K"]:
    """Restore logits from the largest ones; the others are all `rest`."""
    logits = jnp.broadcast_to(rest[:, None], (top.shape[0], num_classes))
    values = top.astype(jnp.float32)
    return jnp.put_along_axis(logits, index.astype(jnp.int32), values, axis=-1, inplace=False)
