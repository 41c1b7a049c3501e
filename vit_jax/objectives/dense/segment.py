# SPDX-License-Identifier: Apache-2.0
"""A class for each pixel by a linear layer over the patches of an encoder (DINOv2, DINOv3).

The encoder is frozen, as in their measurements, or trained with the layer. Its loss is the
cross-entropy at the image's full size.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vit_jax import data, models
from vit_jax.data import DataConfig, Source
from vit_jax.data.checks import check_dense_data
from vit_jax.data.targets import IGNORED, LABEL_MAP, TargetKind
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.dense import linear
from vit_jax.models.dense.linear import NAME, LinearHead, LinearSegmenter
from vit_jax.objectives.base import (
    Aux,
    Batch,
    Context,
    Extras,
    Objective,
    Predict,
)
from vit_jax.objectives.dense.pixels import (
    PixelHeadConfig,
    apart,
    head_flops,
    joined,
    with_num_classes,
)
from vit_jax.settings.fields import value

_STATISTICS = "batch_stats"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class SegmentConfig(PixelHeadConfig):
    """Settings of linear segmentation; the defaults are DINOv3's.

    Attributes:
        num_classes: K; 0 takes the dataset's.
        frozen: the encoder stays as it starts, and sees images as in evaluation.
        dropout_rate: share of the features' channels that training zeroes.
    """

    predicts: ClassVar[tuple[str, ...]] = ("segmentation",)
    pixel_target: ClassVar[str] = TargetKind.PIXELS
    beside: ClassVar[str] = NAME

    num_classes: int = value(0, least=0, note="0 takes the dataset's")
    frozen: bool = True
    dropout_rate: float = value(0.1, least=0, below=1)

    @property
    def pixel_head(self) -> LinearHead:
        """The layer beside the encoder."""
        return LinearHead(num_classes=self.num_classes, dropout_rate=self.dropout_rate)

    def with_classes(self, num_classes: int) -> "SegmentConfig":
        """Return the settings for a dataset's number of classes, if they leave it to that."""
        return with_num_classes(self, num_classes)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for an encoder without a grid, or images that are mixed."""
        check_dense_data(data)
        linear.validate(model)
        self.check_frozen(model)


def check_classes(source: Source, count: int) -> None:
    """Raise UserError for another number of classes than the data's."""
    if source.num_classes != count:
        raise UserError(
            f"objective.num_classes={count}, but {source.name} has {source.num_classes} classes; "
            f"set it to {source.num_classes}, or 0",
            field="objective.num_classes",
        )


def entropy(
    logits: Float[Array, "B H W K"], label_map: Int[Array, "B H W"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the cross-entropy and the accuracy of pixels.

    The loss is the mean over all of them: those of no class have 0 and count (mmsegmentation's
    avg_non_ignore=False, as DINOv2 and v3 train). The accuracy is that of the others.
    """
    known = label_map != IGNORED
    wanted = jnp.where(known, label_map, 0).astype(jnp.int32)[..., None]
    picked = jnp.take_along_axis(logits, wanted, axis=-1)[..., 0]
    losses = jnp.where(known, jax.nn.logsumexp(logits, axis=-1) - picked, 0.0)
    hits = known & (logits.argmax(axis=-1) == wanted[..., 0])
    accuracy = hits.sum(dtype=jnp.float32) / jnp.maximum(known.sum(dtype=jnp.float32), 1)
    return losses.mean(), accuracy


@dataclasses.dataclass(frozen=True)
class Segment(Objective):
    """The objective; `cfg` is a `SegmentConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = (NAME,)

    cfg: SegmentConfig

    @property
    def fields(self) -> tuple[str, ...]:
        """The class of each pixel."""
        return (LABEL_MAP,)

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Refuse data of another number of classes."""
        del seed, positions, saved
        check_classes(source, self.cfg.num_classes)
        return Extras()

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder and the layer."""
        params, state = Objective.init(self, key)
        own, statistics = linear.init(self.model, self.cfg.pixel_head, jax.random.fold_in(key, 1))
        return {**params, NAME: own}, joined(state, {_STATISTICS: statistics}, NAME)

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean cross-entropy of all pixels, with the accuracy of those of a class."""
        encoder, drops = jax.random.split(rng)
        image, (state, own) = batch["image"], apart(ctx.model_state, NAME)
        out, state = self.apply(params, state, image, encoder, train=not self.cfg.frozen)
        maps = linear.patches(self.model, out, image)
        if self.cfg.frozen:
            maps = jax.lax.stop_gradient(maps)
        layer = LinearSegmenter(self.cfg.pixel_head, train=True)
        variables = {"params": params[NAME], **own}
        rngs, kept = {"dropout": drops}, [_STATISTICS]
        scores, changed = layer.apply(variables, maps, rngs=rngs, mutable=kept)
        scores = linear.enlarged(scores, (image.shape[1], image.shape[2]))
        loss, accuracy = entropy(scores, batch[LABEL_MAP])
        metrics = {"loss": loss, "pixel_accuracy": accuracy}
        return loss, Aux(metrics, joined(state, changed, NAME), ctx.objective)

    @functools.cached_property
    def predictors(self) -> Mapping[str, Predict]:
        """Those of the encoder, and "segmentation" [B, K, h, w], logits of a smaller size."""
        return {**super().predictors, "segmentation": self._segmentation}

    def _segmentation(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        image = data.normalize(batch["image"], self.data.mean, self.data.std)
        return jnp.moveaxis(self._scores(variables, image), -1, 1)

    def _scores(self, variables: Any, image: jax.Array) -> Float[Array, "B P Q K"]:
        encoder, own = apart(variables, NAME)
        out = cast(models.Output, self.module.apply(encoder, image, train=False))
        maps = linear.patches(self.model, out, image)
        return cast(Any, LinearSegmenter(self.cfg.pixel_head, train=False).apply(own, maps))

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example; a frozen encoder runs forward only."""
        return head_flops(self, Segment._scores, variables)
