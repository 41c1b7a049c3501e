# SPDX-License-Identifier: Apache-2.0
"""Images and their captions in one space: CLIP (arXiv:2103.00020), SigLIP (arXiv:2303.15343), LiT.

An image and its caption are to be closer than either is to the others of the batch. LiT
(arXiv:2111.07991) locks one of the towers, which starts from weights. SigLIP 2's decoder and its
self-distillation, of which no training code is published, are not here: its weights are, and are
fine-tuned by the sigmoid loss.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.cost.flops import count, train_flops
from vit_jax.data import DataConfig, Source
from vit_jax.data.sources.captions import CAPTION_ID, CUT, TOKENS, Tokenized
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, contrastive, two_towers
from vit_jax.models.text import TextConfig, TowerHead
from vit_jax.models.two_towers import BIAS, SCALE, TwoTowers
from vit_jax.objectives.base import (
    Aux,
    Batch,
    Context,
    Extras,
    Objective,
    ObjectiveConfig,
    Predict,
)
from vit_jax.settings.fields import group, value

_BESIDE = "|".join(two_towers.BESIDE)


class ContrastiveLoss(enum.StrEnum):
    """What the batch's logits are compared with."""

    SOFTMAX = "softmax"  # CLIP: which of the batch's texts is an image's, and the other way round
    SIGMOID = "sigmoid"  # SigLIP: of each pair, whether it is one


class Lock(enum.StrEnum):
    """Which tower stays as it starts."""

    NONE = "none"
    IMAGE = "image"  # LiT
    TEXT = "text"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ContrastiveConfig(ObjectiveConfig):
    """Settings of a pair of towers and its loss; the defaults are CLIP ViT-B's.

    Attributes:
        loss: what the batch's logits are compared with.
        text: the text tower; `model` is the image's.
        dim: E, the width of the space that both share.
        image_projection: the layer to it from the image's features.
        tokenizer: "FILE" of `vit_jax train-tokenizer`, "clip", or where published weights have
            theirs, "hub:USER/NAME" or "hub:./FOLDER"; "" is that of `init.weights`.
        scale: what multiplies the cosines at the start; 0 is 1/0.07 with softmax (CLIP section
            2.5), 10 with sigmoid (SigLIP section 3.2).
        bias: of the logits at the start, with sigmoid; -log B fits a small batch.
        max_scale: the scale is kept from growing beyond it (CLIP section 2.5); 0 lets it grow.
        lock: which tower stays as it starts.
        same_captions: equal captions in a batch are each other's too.
    """

    uses_labels: ClassVar[bool] = False
    splits_batch: ClassVar[bool] = False
    scores_images: ClassVar[bool] = False
    embeds_texts: ClassVar[bool] = True

    loss: ContrastiveLoss = ContrastiveLoss.SOFTMAX
    text: TextConfig = group(TextConfig)
    dim: int = value(512, least=1)
    image_projection: TowerHead = TowerHead.LINEAR
    tokenizer: str = value("", free=True)
    scale: float = value(0.0, least=0, note="0 is the published start")
    bias: float = two_towers.SIGLIP_BIAS
    max_scale: float = value(100.0, least=0, note="0 lets it grow")
    lock: Lock = Lock.NONE
    same_captions: bool = True

    @property
    def locked(self) -> str:
        """The regex of the locked tower's parameters."""
        match self.lock:
            case Lock.NONE:
                return ""
            case Lock.IMAGE:
                return rf"^(?!(?:{_BESIDE})(?:/|$))"
            case Lock.TEXT:
                return rf"^{two_towers.TEXT}/"

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for towers that do not meet, or mixed images, whose captions are two."""
        two_towers.validate(pair(self, model), "objective.")
        if data.mix.mixup_alpha or data.mix.cutmix_alpha:
            raise UserError(
                "data.mix mixes images, and a mixed image has no caption; set its alphas to 0",
                field="data.mix",
            )

    def check_start(self, weights: str) -> None:
        """Refuse to lock what starts at random."""
        if self.locked and not weights:
            raise UserError(
                f"objective.lock={self.lock} keeps that tower as it starts, which is at random; "
                "set init.weights, or objective.lock=none"
            )


def pair(cfg: ContrastiveConfig, model: ModelConfig) -> TwoTowers:
    """Return the pair of towers of a run's objective and model."""
    return TwoTowers(
        image=model,
        text=cfg.text,
        dim=cfg.dim,
        image_projection=cfg.image_projection,
        has_bias=cfg.loss is ContrastiveLoss.SIGMOID,
    )


@dataclasses.dataclass(frozen=True)
class Contrastive(Objective):
    """The objective; `cfg` is a `ContrastiveConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = two_towers.BESIDE

    cfg: ContrastiveConfig

    @functools.cached_property
    def pair(self) -> TwoTowers:
        """The towers."""
        return pair(self.cfg, self.model)

    @property
    def own_heads(self) -> int:
        """The text tower's."""
        return self.cfg.text.num_heads

    @property
    def fields(self) -> tuple[str, ...]:
        """The tokens of one of an image's captions, and what tells whether two captions are one."""
        return (TOKENS, CUT, *((CAPTION_ID,) if self.cfg.same_captions else ()))

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Return the digest of the tokenizer, without which ids mean nothing."""
        del seed, positions, saved
        tokenizer: Any = cast(Tokenized, source).tokenizer
        return Extras(digest=tokenizer.digest, field="objective.tokenizer")

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise both towers, the layers to the shared space, scale and bias."""
        scale = math.log(self.cfg.scale) if self.cfg.scale else None
        return two_towers.init(self.pair, key, scale, self.cfg.bias)

    def bounded(self, params: Any) -> Any:
        """Keep the scale at most `max_scale`: the parameter, so that its gradient stays alive."""
        if not self.cfg.max_scale:
            return params
        most = math.log(self.cfg.max_scale)
        return {**params, SCALE: jnp.minimum(params[SCALE], most)}

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the loss of the global batch, with how often the nearest of it is the right one.

        `mean_cosine` are the mean images' and texts' squared lengths: 1 where all are one point.
        """
        cfg, locked = self.cfg, self.cfg.lock is Lock.IMAGE
        out, state = self.apply(params, ctx.model_state, batch["image"], rng, train=not locked)
        features = jax.lax.stop_gradient(out.features) if locked else out.features
        image = two_towers.embed_image(self.pair, params, features)
        own = params
        if cfg.lock is Lock.TEXT:
            own = {**params, two_towers.TEXT: jax.lax.stop_gradient(params[two_towers.TEXT])}
        text = two_towers.embed_text(self.pair, own, batch[TOKENS], train=True)
        ids = batch[CAPTION_ID] if cfg.same_captions else None
        scale = jnp.exp(params[SCALE])
        if cfg.loss is ContrastiveLoss.SIGMOID:
            found = contrastive.sigmoid_loss(image, text, scale, params[BIAS], ids)
        else:
            found = contrastive.softmax_loss(image, text, scale, ids)
        metrics = {
            "loss": found.loss,
            "image_to_text": found.image_to_text,
            "text_to_image": found.text_to_image,
            "logit_scale": scale,
            "captions_cut": batch[CUT].mean(dtype=jnp.float32),
            "image_mean_cosine": jnp.square(image.mean(axis=0)).sum(),
            "text_mean_cosine": jnp.square(text.mean(axis=0)).sum(),
        }
        if cfg.loss is ContrastiveLoss.SIGMOID:
            metrics["logit_bias"] = params[BIAS]
        return found.loss, Aux(metrics, state, ctx.objective)

    @functools.cached_property
    def predictors(self) -> Mapping[str, Predict]:
        """Those of the encoder, and the unit vectors of images and of texts, [B, E]."""
        return {
            **super().predictors,
            "image_embedding": self._image_embedding,
            "text_embedding": self._text_embedding,
        }

    def _image_embedding(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        features = self.encode(variables, batch).features
        return two_towers.embed_image(self.pair, variables["params"], features)

    def _text_embedding(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        return two_towers.embed_text(self.pair, variables["params"], batch[TOKENS])

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example: both towers'.

        A locked tower has no backward pass. The logits, E for each pair of the batch, are left out:
        they depend on the batch.
        """
        image = Objective.flops(self, variables)
        text = train_flops(self.text_flops(variables))
        if self.cfg.lock is Lock.IMAGE:
            image //= 3
        return image + (text // 3 if self.cfg.lock is Lock.TEXT else text)

    def text_flops(self, variables: Any) -> int:
        """Return the FLOPs of embedding one text; `variables` are shapes, as of `flops`."""
        looped = dataclasses.replace(self.pair, image=two_towers.models.looped(self.model))
        tokens = jax.ShapeDtypeStruct((1, self.cfg.text.context), jnp.int32)
        embed: Callable[..., Any] = lambda v, t: two_towers.embed_text(looped, v["params"], t)  # noqa: E731
        return count(embed, variables, tokens)

    def passed_bytes(self, batch: int, shards: int) -> int:
        """Return what a device sends to the next one, for which the step waits."""
        softmax = self.cfg.loss is ContrastiveLoss.SOFTMAX
        return contrastive.passed_bytes(batch, self.cfg.dim, shards, softmax=softmax)
