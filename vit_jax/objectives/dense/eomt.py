# SPDX-License-Identifier: Apache-2.0
"""EoMT (arXiv:2503.19108): classes, things and stuff, or instances as the masks of queries.

Each of the predictions, before every one of the last blocks and at the end, is matched with the
masks of the image anew, and their losses are added. The masks within which queries attend are
annealed away, block by block.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from vit_jax import data, models
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import DataConfig, Source
from vit_jax.data.checks import check_dense_data
from vit_jax.data.targets import (
    FIELDS,
    LABEL_MAP,
    SEGMENT_CLASS,
    SEGMENTS,
    SEGMENTS_CUT,
    TargetKind,
)
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.dense import eomt
from vit_jax.models.dense.eomt import BESIDE, EomtHead, EomtOutput, EomtViT, Segments
from vit_jax.objectives.base import (
    Aux,
    Batch,
    Context,
    Extras,
    Objective,
    ObjectiveConfig,
    Predict,
)
from vit_jax.objectives.dense.losses import (
    MaskLossConfig,
    MaskTargets,
    label_targets,
    row_shares,
    segment_targets,
    set_loss,
)
from vit_jax.objectives.dense.pixels import with_num_classes
from vit_jax.objectives.dense.segment import check_classes
from vit_jax.settings.durations import Clock
from vit_jax.settings.fields import group, value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class EomtConfig(ObjectiveConfig):
    """Settings of EoMT; the defaults are the authors' for ADE20K.

    Attributes:
        num_classes: K; 0 takes the dataset's.
        target: what the data have: "pixels", a class for each, of which every one that is there is
            a mask; "segments", instances, or things and stuff.
        queries: Q.
        blocks: m, in how many of the last blocks queries take part.
        upscale: how often the map of patches is doubled for the masks; 0 is until they are a
            quarter of the image's size.
        loss: weights and points of the masks' losses.
        anneal_start, anneal_end: when each of the last blocks begins to leave its masks, and when
            it has none; () are equal parts of the run, from 1 / (m + 2) of it.
        anneal_power: how the share of queries with a mask falls: (1 - progress) to this power.
    """

    uses_labels: ClassVar[bool] = False
    scores_images: ClassVar[bool] = False
    predicts: ClassVar[tuple[str, ...]] = ("segmentation", "segments")

    num_classes: int = value(0, least=0, note="0 takes the dataset's")
    target: TargetKind = TargetKind.PIXELS
    queries: int = value(100, least=1)
    blocks: int = value(4, least=1)
    upscale: int = value(0, least=0, note="0 is by the patch")
    loss: MaskLossConfig = group(MaskLossConfig)
    anneal_start: tuple[str, ...] = value((), unit="durations")
    anneal_end: tuple[str, ...] = value((), unit="durations")
    anneal_power: float = value(0.9, above=0)

    @property
    def pixel_target(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the data must have of their pixels."""
        return self.target

    @classmethod
    def of(cls, head: EomtHead) -> "EomtConfig":
        """Return the settings by which a published network is trained further."""
        fields = dataclasses.asdict(head)
        return cls(**fields)

    @property
    def pixel_head(self) -> EomtHead:
        """What stands beside the encoder."""
        names = [field.name for field in dataclasses.fields(EomtHead)]
        return EomtHead(**{name: getattr(self, name) for name in names})

    def with_classes(self, num_classes: int) -> "EomtConfig":
        """Return the settings for a dataset's number of classes, if they leave it to that."""
        return with_num_classes(self, num_classes)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for an encoder that is no plain ViT, or times that do not fit."""
        check_dense_data(data)
        eomt.validate(model, self.pixel_head)
        if self.target not in (TargetKind.PIXELS, TargetKind.SEGMENTS):
            raise UserError(
                f"objective.target={self.target.value!r} has no masks; set pixels or segments",
                field="objective.target",
            )
        for name in ("anneal_start", "anneal_end"):
            given = getattr(self, name)
            if given and len(given) != self.blocks:
                raise UserError(
                    f"objective.{name}={given} must hold a duration for each of "
                    f"objective.blocks={self.blocks}",
                    field=f"objective.{name}",
                )
        if bool(self.anneal_start) != bool(self.anneal_end):
            raise UserError(
                "objective.anneal_start and anneal_end go together; set both or neither",
                field="objective.anneal_start",
            )


def annealing(cfg: EomtConfig, clock: Clock | None) -> list[tuple[int, int]]:
    """Return the (first, last) step in which each of the last blocks leaves its masks.

    Raises UserError: one that ends before it begins.
    """
    if clock is None:
        return [(0, 0)] * cfg.blocks
    if not cfg.anneal_start:
        total, parts = clock.total_steps or 0, cfg.blocks + 2
        return [(total * i // parts, total * (i + 1) // parts) for i in range(1, cfg.blocks + 1)]
    found = []
    for first, last in zip(cfg.anneal_start, cfg.anneal_end, strict=True):
        steps = clock.steps(first), clock.steps(last)
        if steps[0] > steps[1]:
            raise UserError(
                f"objective.anneal_end={last!r} ({steps[1]} steps) is before anneal_start="
                f"{first!r} ({steps[0]} steps)",
                field="objective.anneal_end",
            )
        found.append(steps)
    return found


def shares(cfg: EomtConfig, clock: Clock | None, step: Array) -> Float32[Array, " m"]:
    """Return the share of queries that keep to their mask in each of the last blocks, by now."""
    first, last = (jnp.asarray(x) for x in zip(*annealing(cfg, clock), strict=True))
    done = (step - first).astype(jnp.float32) / jnp.maximum(last - first, 1)
    falling = jnp.clip(1 - done, 0.0, 1.0) ** cfg.anneal_power
    return jnp.where(step < first, 1.0, jnp.where(step >= last, 0.0, falling)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Eomt(Objective):
    """The objective; `cfg` is an `EomtConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = BESIDE

    cfg: EomtConfig

    @functools.cached_property
    def network(self) -> EomtViT:
        """The encoder with queries and heads."""
        return eomt.create(self.model, self.cfg.pixel_head)

    @property
    def fields(self) -> tuple[str, ...]:
        """The class of each pixel, or segments and their classes."""
        return FIELDS[self.cfg.target]

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Refuse data of another number of classes."""
        del seed, positions, saved
        check_classes(source, self.cfg.num_classes)
        return Extras()

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder, the queries and the heads."""
        annealing(self.cfg, self.clock)  # which checks it
        return eomt.init(self.model, self.cfg.pixel_head, key)

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise the images, and count the masks of the global batch."""
        batch = Objective.prepare(self, batch, rng)
        return batch | row_shares(self._targets(batch).classes, self.cfg.loss, self.cfg.queries)

    def _targets(self, batch: Batch) -> MaskTargets:
        if self.cfg.target is TargetKind.PIXELS:
            most = min(self.cfg.num_classes, self.cfg.queries)
            return label_targets(batch[LABEL_MAP], self.cfg.num_classes, most)
        width = batch["image"].shape[2]
        return segment_targets(batch[SEGMENTS], batch[SEGMENT_CLASS], width)

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the loss of all predictions, with the terms of the last one."""
        drops, points = jax.random.split(rng)
        now = shares(self.cfg, self.clock, ctx.step)
        found = self._trained(params, ctx.model_state, batch["image"], now, drops)
        classes, masks = (jnp.stack(each) for each in zip(*found.predictions, strict=True))
        own = {name: batch[name] for name in ("mask_share", "class_share")}
        loss, terms = set_loss(classes, masks, self._targets(batch), own, self.cfg.loss, points)
        metrics = {"loss": loss, **terms, "masked": now.mean()}
        if SEGMENTS_CUT in batch:
            metrics["segments_cut"] = batch[SEGMENTS_CUT].mean(dtype=jnp.float32)
        return loss, Aux(metrics, ctx.model_state, ctx.objective)

    def _trained(
        self, params: Any, state: Any, image: jax.Array, now: jax.Array, rng: jax.Array
    ) -> EomtOutput:
        given = {"train": True, "shares": now, "rngs": {"dropout": rng}}
        return cast(EomtOutput, self.network.apply({"params": params, **state}, image, **given))

    @functools.cached_property
    def predictors(self) -> Mapping[str, Predict]:
        """Those of the encoder, and what the queries say.

        "segments" are the logits of classes [B, Q, K + 1] and of masks [B, Q, h, w];
        "segmentation" [B, K, H, W] is how much each pixel is of each class.
        """
        found = {"segmentation": self._segmentation, "segments": self._segments}
        return {**super().predictors, **found}

    def _segments(self, variables: Any, batch: Mapping[str, jax.Array]) -> Any:
        image = data.normalize(batch["image"], self.data.mean, self.data.std)
        return cast(EomtOutput, self.network.apply(variables, image)).predictions[-1]

    def _segmentation(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        found: Segments = self._segments(variables, batch)
        return eomt.class_scores(found, (batch["image"].shape[1], batch["image"].shape[2]))

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example: of network and heads alone."""
        looped = dataclasses.replace(self, model=models.looped(self.model))
        image = jax.ShapeDtypeStruct((1, *models.input_shape(self.model)), jnp.float32)
        state = {name: tree for name, tree in variables.items() if name != "params"}
        now = jax.ShapeDtypeStruct((self.cfg.blocks,), jnp.float32)
        key = jax.eval_shape(lambda: jax.random.key(0))
        return train_flops(count(looped._trained, variables["params"], state, image, now, key))
