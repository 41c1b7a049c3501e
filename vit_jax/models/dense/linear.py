# SPDX-License-Identifier: Apache-2.0
"""Linear layers over the patches of any encoder, as DINOv2 and DINOv3 measure them: classes, depth.

Classes: dropout of whole channels, BatchNorm and a 1x1 convolution (facebookresearch/dinov3
`eval/segmentation/models/heads/linear_head.py`). Depth (arXiv:2508.10104 section 6.1.2; AdaBins'
bins): BatchNorm, 256 scores of a patch, relu + 0.1, divided by their sum: weights of depths that
lie evenly between the least and the greatest (`eval/depth`).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.norm import BatchNorm
from vit_jax.models.resample import resize_map

NAME = "segment"  # of the layer beside the encoder
_EPS = 1e-5  # of BatchNorm, PyTorch's
_LEAST = 0.1  # what is added to each score of a depth, so that no sum is 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearHead:
    """The layer beside an encoder.

    Attributes:
        num_classes: K.
        dropout_rate: share of the channels that training zeroes, all of one image alike.
    """

    num_classes: int
    dropout_rate: float = 0.1


class LinearSegmenter(nn.Module):
    """Logits of every place of a map of features, in float32."""

    head: LinearHead
    train: bool

    @nn.compact
    def __call__(self, maps: Float[Array, "B P Q D"]) -> Float[Array, "B P Q K"]:
        x, rate = maps.astype(jnp.float32), self.head.dropout_rate
        if self.train and rate:
            shape = (len(x), 1, 1, x.shape[-1])
            kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - rate, shape)
            x = jnp.where(kept, x / (1 - rate), 0)
        x = BatchNorm(_EPS, jnp.float32, self.train, name="norm")(x)
        start = nn.initializers.normal(0.01)
        return Dense(self.head.num_classes, jnp.float32, start, name="classifier")(x)


class LinearDepth(nn.Module):
    """The head: parameters `norm` and `conv`, statistics of `norm` in `batch_stats`.

    Attributes:
        bins: how many depths.
        least, greatest: the first and the last of them.
        train: normalise by the batch's own statistics.
    """

    bins: int
    least: float
    greatest: float
    train: bool = False

    @nn.compact
    def __call__(self, patches: Float[Array, "B P Q D"]) -> Float32[Array, "B P Q"]:
        x = BatchNorm(_EPS, jnp.float32, self.train, name="norm")(patches)
        scores = Dense(self.bins, jnp.float32, nn.initializers.normal(0.01), name="conv")(x)
        weights = nn.relu(scores) + _LEAST
        depths = jnp.linspace(self.least, self.greatest, self.bins)
        depths = depths.reshape(1, 1, 1, -1)
        return (weights * depths).sum(axis=-1) / weights.sum(axis=-1)


def grid(cfg: ModelConfig, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (rows, columns) of the tokens that an encoder returns of an image."""
    rows, columns = models.family(cfg).grids(cfg, image_size)[-1]
    return rows, columns


def patches(
    cfg: ModelConfig, out: Output, image: Float[Array, "B H W C"]
) -> Float[Array, "B P Q D"]:
    """Return an encoder's tokens of images where they lie, without those before the patches."""
    rows, columns = grid(cfg, (image.shape[1], image.shape[2]))
    tokens = out.tokens[:, -rows * columns :]
    return tokens.reshape(tokens.shape[0], rows, columns, -1)


def validate(cfg: ModelConfig) -> None:
    """Raise UserError for an encoder whose tokens lie in no grid."""
    name = models.family(cfg).name
    if getattr(cfg, "token_merging", 0):
        raise UserError("merged tokens lie in no grid of patches; set model.token_merging=0")
    if getattr(cfg, "patch_drop_rate", 0):
        raise UserError("dropped patches have no pixels; set model.patch_drop_rate=0")
    if getattr(cfg, "native", False):
        raise UserError("segmentation has images of one size; set model.native=False")
    tokens, size = _tokens(cfg), models.input_shape(cfg)[:2]
    if tokens is None or tokens.shape[1] < math.prod(grid(cfg, size)):
        raise UserError(f"a {name} returns no tokens in a grid; choose a model of patches")


def _tokens(cfg: ModelConfig) -> Any:
    """Return the shape of the tokens that an encoder makes of an image; None for none."""
    module = models.create(models.looped(cfg))
    image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32)
    out = jax.eval_shape(lambda v, x: module.apply(v, x, train=False), models.abstract(cfg), image)
    return cast(Output, out).tokens


def width(cfg: ModelConfig) -> int:
    """Return D, the width of an encoder's tokens."""
    return _tokens(cfg).shape[-1]


def init(cfg: ModelConfig, head: LinearHead, key: jax.Array) -> tuple[Any, Mapping[str, Any]]:
    """Initialise (params, statistics) of the layer, pure."""
    maps = jnp.zeros((1, *grid(cfg, models.input_shape(cfg)[:2]), width(cfg)))
    made = LinearSegmenter(head, train=False).init(key, maps)
    return made["params"], made["batch_stats"]


def enlarged(scores: Float[Array, "B P Q K"], size: tuple[int, int]) -> Float[Array, "B H W K"]:
    """Resize maps of scores bilinearly, pixel centres as in PyTorch with align_corners=False."""
    return resize_map(scores, size)
