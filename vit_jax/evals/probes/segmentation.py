# SPDX-License-Identifier: Apache-2.0
"""Segmentation by a linear head on frozen patches, and how segmentations are scored.

The head is DINOv2's (arXiv:2304.07193 section 7.4, "linear"): BatchNorm and one linear layer on
each patch, logits brought to the image's size bilinearly, cross-entropy, AdamW of 1e-3 that warms
up over 1.5/40 of the steps and falls linearly to zero, weight decay 1e-4, batches of 16. Differs
from DINOv2: images are neither cropped nor changed at random, so that each is encoded once.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float32, Int, UInt8

from vit_jax.data.sources.dense.masks import IGNORED

LR = 1e-3
BATCH = 16
_DECAY = 1e-4
_WARMUP = 1500 / 40000  # of the steps
_MOMENTUM = 0.1  # of the running statistics, PyTorch's
_EPS = 1e-5


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """How well a method segments the test images; everything in [0, 1].

    Attributes:
        method: its name.
        settings: of it, by name.
        confusion: pixels by true class (rows) and predicted class (columns), without the ignored.
    """

    method: str
    settings: dict[str, Any]
    confusion: Int[np.ndarray, "K K"]

    @property
    def iou(self) -> Float[np.ndarray, " K"]:
        """Intersection over union of each class; NaN of one that is neither there nor predicted."""
        hits = np.diag(self.confusion).astype(np.float64)
        union = self.confusion.sum(axis=0) + self.confusion.sum(axis=1) - hits
        return np.where(union > 0, hits / np.maximum(union, 1), np.nan)

    @property
    def miou(self) -> float:
        """The mean of the classes' `iou`, over all test images together."""
        return float(np.nanmean(self.iou))

    @property
    def accuracy(self) -> float:
        """The share of labelled pixels whose class is predicted."""
        return float(np.trace(self.confusion) / self.confusion.sum())


def confusion(
    truth: UInt8[np.ndarray, "H W"], predicted: UInt8[np.ndarray, "H W"], num_classes: int
) -> Int[np.ndarray, "K K"]:
    """Count the labelled pixels of an image by true and predicted class."""
    known = truth != IGNORED
    cells = truth[known].astype(np.int64) * num_classes + predicted[known]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def enlarge(
    scores: Float32[np.ndarray, "P Q K"], size: tuple[int, int]
) -> UInt8[np.ndarray, "H W"]:
    """Bring the scores of patches to an image's (height, width) bilinearly; return the best class.

    Pixel centres lie as in PyTorch's `interpolate` with align_corners=False.
    """
    rows, columns, num_classes = scores.shape
    taller = _linear(rows, size[0]) @ scores.reshape(rows, -1)
    whole = _linear(columns, size[1]) @ taller.reshape(size[0], columns, num_classes)
    return whole.argmax(axis=-1).astype(np.uint8)


def _linear(old: int, new: int) -> Float32[np.ndarray, "new old"]:
    """Return the weights of `old` values in each of `new` between them."""
    centres = ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)
    distances = np.abs(centres[:, None] - np.arange(old))
    return np.maximum(1 - distances, 0).astype(np.float32)


class Head(NamedTuple):
    """The linear head, and the running statistics of what it sees."""

    params: dict[str, jax.Array]
    mean: Float[Array, " D"]
    var: Float[Array, " D"]

    def scores(self, tokens: Float[np.ndarray, "B P Q D"]) -> Float32[np.ndarray, "B P Q K"]:
        """Return the logits of every patch."""
        return np.asarray(_logits(self.params, jnp.asarray(tokens), self.mean, self.var))


def fit(
    tokens: Float[np.ndarray, "N P Q D"],
    masks: UInt8[np.ndarray, "N H W"],
    num_classes: int,
    *,
    steps: int,
    lr: float = LR,
    seed: int = 0,
) -> Head:
    """Train a head on frozen patches.

    Args:
        tokens: of the training images.
        masks: their classes, `IGNORED` where there is none.
        num_classes: K.
        steps: updates, each of 16 images or, where there are fewer, of all.
        lr: the highest learning rate.
        seed: of the initial weights and the order of the images.
    """
    dim, batch = tokens.shape[-1], min(BATCH, len(tokens))
    params = {
        "scale": jnp.ones(dim),
        "shift": jnp.zeros(dim),
        "kernel": 0.01 * jax.random.normal(jax.random.key(seed), (dim, num_classes)),
        "bias": jnp.zeros(num_classes),
    }
    state: Any = optax.adamw(lr).init(params)
    head, rng = Head(params, jnp.zeros(dim), jnp.ones(dim)), np.random.default_rng(seed)
    warmup, order = max(1.0, _WARMUP * steps), np.zeros(0, np.int64)
    for step in range(steps):
        if len(order) < batch:
            order = np.concatenate([order, rng.permutation(len(tokens))])
        chosen, order = order[:batch], order[batch:]
        rate = lr * (1 - step / steps) * min(1.0, (step + 1) / warmup)
        head, state = _step(head, state, tokens[chosen], masks[chosen], jnp.float32(rate))
    return head


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _step(
    head: Head,
    state: Any,
    tokens: Float[Array, "B P Q D"],
    masks: UInt8[Array, "B H W"],
    rate: Float[Array, ""],
) -> tuple[Head, Any]:
    flat = tokens.reshape(-1, tokens.shape[-1])
    mean, var = flat.mean(axis=0), flat.var(axis=0)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        logits = _logits(params, tokens, mean, var)
        logits = jax.image.resize(logits, (*masks.shape, logits.shape[-1]), "bilinear")
        known = masks != IGNORED
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, jnp.where(known, masks, 0).astype(jnp.int32)
        )
        return jnp.sum(losses, where=known) / jnp.maximum(known.sum(), 1)

    optimizer = optax.adamw(rate, weight_decay=_DECAY)
    updates, state = optimizer.update(jax.grad(loss)(head.params), state, head.params)
    params: Any = optax.apply_updates(head.params, updates)
    unbiased = var * len(flat) / max(len(flat) - 1, 1)
    seen = (head.mean, mean), (head.var, unbiased)
    return Head(params, *(old + _MOMENTUM * (new - old) for old, new in seen)), state


@jax.jit
def _logits(
    params: dict[str, jax.Array],
    tokens: Float[Array, "B P Q D"],
    mean: Float[Array, " D"],
    var: Float[Array, " D"],
) -> Float[Array, "B P Q K"]:
    flat = tokens.reshape(-1, tokens.shape[-1])
    normal = (flat - mean[None]) * (jax.lax.rsqrt(var + _EPS) * params["scale"])[None]
    logits = (normal + params["shift"][None]) @ params["kernel"] + params["bias"][None]
    return logits.reshape(*tokens.shape[:-1], -1)
