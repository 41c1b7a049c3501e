# SPDX-License-Identifier: Apache-2.0
"""Depth of every pixel: a linear or a DPT head over an encoder, by the scale-invariant loss.

`dense_losses.silog` over all pixels of known depth of a batch, as facebookresearch/dinov2 and
dinov3 train their depth heads.
"""

import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from vit_jax import data
from vit_jax.data import DataConfig, Source, target_kind
from vit_jax.data.checks import check_dense_data
from vit_jax.data.targets import DEPTH, TargetKind
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.dense import dpt, linear
from vit_jax.models.dense.dpt import NAME, DptConfig
from vit_jax.models.dense.linear import LinearDepth
from vit_jax.models.resample import resize_map
from vit_jax.objectives.base import Aux, Batch, Context, Extras, Objective, Predict
from vit_jax.objectives.dense.losses import silog
from vit_jax.objectives.dense.pixels import PixelHeadConfig, apart, head_flops, joined
from vit_jax.settings.fields import check_effects, group, value


class DepthHead(enum.StrEnum):
    """What makes depths of an encoder's tokens."""

    LINEAR = "linear"  # one layer on each patch of the last layer
    DPT = "dpt"  # maps of four layers, joined from the coarsest to the finest


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DepthConfig(PixelHeadConfig):
    """Settings of learning depth; the defaults are DINOv3's of NYU with a linear head, in metres.

    Attributes:
        head: linear or dpt.
        dpt: of the DPT head.
        bins: of the linear head, the number of depths that it weighs.
        min_depth, max_depth: of the linear head, the least and the greatest of them.
        mean_weight: of the squared mean in the loss; 1 forgives no common factor of depths.
        variance_after: steps that the loss leaves the variance out of at the start.
    """

    splits_batch: ClassVar[bool] = False  # the variance is of the whole batch
    predicts: ClassVar[tuple[str, ...]] = ("depth",)
    pixel_target: ClassVar[str] = TargetKind.DEPTH
    beside: ClassVar[str] = NAME

    head: DepthHead = DepthHead.LINEAR
    dpt: DptConfig = group(DptConfig)
    bins: int = value(256, least=2)
    min_depth: float = value(0.001, above=0, unit="of the depths")
    max_depth: float = value(10.0, above=0, unit="of the depths")
    mean_weight: float = value(0.15, least=0, most=1)
    variance_after: int = value(100, least=0, unit="steps")

    @property
    def pixel_head(self) -> DptConfig | LinearDepth:
        """What stands beside the encoder."""
        if self.head is DepthHead.DPT:
            return self.dpt
        return LinearDepth(self.bins, self.min_depth, self.max_depth)

    def _effects(self) -> Iterator[tuple[bool, str, *tuple[str, ...]]]:
        """Yield whether settings have an effect beside the others, when not, and their names."""
        is_linear = self.head is DepthHead.LINEAR
        yield is_linear, "without objective.head=linear", "bins", "min_depth", "max_depth"
        yield not is_linear, "without objective.head=dpt", "dpt"

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for a head that the model has no tokens for, or images that are mixed."""
        check_effects(self, "objective.", self._effects())
        if self.min_depth >= self.max_depth:
            what = f"objective.min_depth={self.min_depth} must be below max_depth={self.max_depth}"
            raise UserError(what, field="objective.min_depth")
        check_dense_data(data)
        linear.validate(model)
        if self.head is DepthHead.DPT:
            dpt.check(self.dpt, model)
        self.check_frozen(model)


@dataclasses.dataclass(frozen=True)
class Depth(Objective):
    """The objective; `cfg` is a `DepthConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = (NAME,)

    cfg: DepthConfig

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the source, besides its image, that go to the devices."""
        return (DEPTH,)

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Refuse data without depths."""
        del seed, positions, saved
        if target_kind(source) != TargetKind.DEPTH:
            raise UserError(
                f"{source.name} has no depths; depth:DIR has, with images in DIR/images/<split> "
                "and maps in DIR/depth/<split>",
                field="data.name",
            )
        return Extras()

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder and, beside it, the head."""
        params, model_state = Objective.init(self, key)
        key = jax.random.fold_in(key, 1)
        if self.cfg.head is DepthHead.DPT:
            own, state = dpt.init(self.cfg.dpt, self.model, key)
        else:
            width = linear.width(self.model)
            state = dict(self._linear(train=False).init(key, jnp.zeros((1, 1, 1, width))))
            own = state.pop("params")
        return {**params, NAME: own}, joined(model_state, state, NAME)

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return SigLoss over the batch's pixels of known depth, and their relative error."""
        image, truth = batch["image"], batch[DEPTH]
        found, state = self._depths(params, ctx.model_state, image, rng, train=True)
        known, number = truth > 0, (truth > 0).sum().astype(jnp.float32)
        weight = (ctx.step >= self.cfg.variance_after).astype(jnp.float32)
        loss = silog(found, truth, self.cfg.mean_weight, weight)
        error = jnp.where(known, jnp.abs(found - truth) / jnp.where(known, truth, 1), 0)
        metrics = {
            "loss": loss,
            "abs_rel": error.sum() / jnp.maximum(number, 1),
            "known": number / truth.size,
        }
        return loss, Aux(metrics, state, ctx.objective)

    def alarm(self, metrics: Mapping[str, float]) -> str:
        """Return a warning where no pixel teaches anything."""
        if metrics.get("known", 1) > 0:
            return ""
        return "no pixel has a known depth (0 is unknown); check data.name and its scale"

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example; a frozen encoder runs forward only."""
        return head_flops(self, Depth.predicted, variables)

    def predicted(
        self, variables: Mapping[str, Any], image: Float[Array, "B H W C"]
    ) -> Float32[Array, "B H W"]:
        """Return the depth of every pixel of normalised images, in evaluation mode."""
        state = {kind: tree for kind, tree in variables.items() if kind != "params"}
        key = jax.random.key(0)  # nothing is dropped
        return self._depths(variables["params"], state, image, key, train=False)[0]

    @functools.cached_property
    def predictors(self) -> Mapping[str, Predict]:
        """What evaluations ask for by name: "depth" [B, H, W], "features" [B, D]."""
        return {"depth": self._of_batch, "features": self._features}

    def _of_batch(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        image = data.normalize(batch["image"], self.data.mean, self.data.std)
        return self.predicted(variables, image)

    def _depths(
        self, params: Any, state: Any, image: jax.Array, rng: jax.Array, *, train: bool
    ) -> tuple[Float32[Array, "B H W"], Any]:
        """Return depths, and the new state of the model and of the head."""
        rest, own = apart(state, NAME)
        learns = train and not self.cfg.frozen
        if self.cfg.head is DepthHead.DPT:
            variables, how = {"params": params, **rest}, {"train": learns, "rng": rng}
            seen: Any = dpt.tapped(self.cfg.dpt, self.model, variables, image, **how)
            head: Any = dpt.create(self.cfg.dpt, self.model, train=train)
        else:
            out, rest = self.apply(params, rest, image, rng, train=learns)
            seen = linear.patches(self.model, out, image)
            head = self._linear(train=train)
        if self.cfg.frozen:
            seen = jax.lax.stop_gradient(seen)
        variables = {"params": params[NAME], **own}
        if train and own:
            found, own = head.apply(variables, seen, mutable=list(own))
        else:
            found = head.apply(variables, seen)
        depths = resize_map(found[..., None], (image.shape[1], image.shape[2]))[..., 0]
        return depths, joined(rest, own, NAME)

    def _linear(self, *, train: bool) -> LinearDepth:
        cfg = self.cfg
        return LinearDepth(cfg.bins, cfg.min_depth, cfg.max_depth, train)
