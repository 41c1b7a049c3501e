# SPDX-License-Identifier: Apache-2.0
"""LeJEPA (arXiv:2511.08544): views of an image agree, and all are spread like a normal variable.

There is no teacher, no stopped gradient and no schedule: what keeps the features from collapse is
SIGReg, a test of whether their projections on random directions are normally distributed. Its means
are those of the global batch, so that the loss does not depend on how many devices hold it, and
devices exchange the means alone.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Key

from vit_jax import data, models
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import Crop, DataConfig, Resize, TransformConfig, View, reading
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, base
from vit_jax.models.decoder import Projector
from vit_jax.objectives.base import Aux, Batch, Context, Objective, ObjectiveConfig
from vit_jax.objectives.dino import feature_rank
from vit_jax.settings.fields import group, value

_EXACT = jax.lax.Precision.HIGHEST
_LAST, _KNOTS = 3.0, 17  # where the characteristic functions are compared: 0 to 3
_LARGE, _SMALL = "large", "small"
_PROJECTOR = "projector"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LeJepaConfig(ObjectiveConfig):
    """Settings of LeJEPA; the defaults are those of rbalestr-lab/lejepa.

    The large crops are made by `data.transform`.

    Attributes:
        large_crops: how many of them; their mean is what every crop is to agree with.
        small: the transform of the small crops.
        small_crops: how many of them.
        small_size: their (H, W) in pixels; (S,) means square.
        weight: of SIGReg; that of the agreement is 1 minus it.
        directions: on how many the projections are tested; each step draws its own.
        dim: K, the width of what is compared.
        hidden_dim: of the projector's two hidden layers.
    """

    uses_labels: ClassVar[bool] = False
    splits_batch: ClassVar[bool] = False
    scores_images: ClassVar[bool] = False

    large_crops: int = value(2, least=1)
    small: TransformConfig = group(
        lambda: TransformConfig(crop=Crop.RANDOM_RESIZED, resize=Resize.BICUBIC, area=(0.05, 0.3))
    )
    small_crops: int = value(6, least=0)
    small_size: tuple[int, ...] = value((96, 96), unit="pixels")
    weight: float = value(0.02, above=0, below=1)
    directions: int = value(1024, least=1)
    dim: int = value(128, least=1)
    hidden_dim: int = value(2048, least=1)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for crops that the model cannot take, in one line."""
        del data
        if self.large_crops + self.small_crops < 2:
            raise UserError(
                "objective.large_crops=1 without small crops agrees with itself; set 2 or more"
            )
        full, small = models.input_shape(model)[:2], base.pair(self.small_size, "small_size")
        if not self.small_crops or small == full:
            return
        if hasattr(model, "patch"):
            models.patch_grid(model, small)
        if not getattr(model, "dynamic_image_size", False):
            why = "are of another size than the large ones; set model.dynamic_image_size=True"
            raise UserError(
                f"objective.small_crops of {small[0]} x {small[1]} pixels {why}, or "
                f"objective.small_size={full[0]},{full[1]}",
                field="objective.small_crops",
            )


def directions(key: Key[Array, ""], dim: int, count: int) -> Float32[Array, "K M"]:
    """Draw directions, the columns, uniformly from the sphere."""
    drawn = jax.random.normal(key, (dim, count))
    return drawn / jnp.sqrt(jnp.square(drawn).sum(axis=0, keepdims=True))


def normality(z: Float[Array, "V N K"], along: Float[Array, "K M"]) -> Float[Array, "V M"]:
    """Return the statistic of Epps and Pulley of N numbers, for each view and direction.

    It is N times the integral of |c(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2), with c the mean of
    exp(i t u) over the numbers u = z a, by the trapezoids of 17 places from 0 to 3, doubled for
    those below 0 (lejepa, `MINIMAL.md` and `univariate/epps_pulley.py`).
    """
    # Differs from paper: which integrates from -5 to 5; as here, its code, for the same work.
    dtype = jnp.promote_types(z.dtype, jnp.float32)
    places, step = np.linspace(0, _LAST, _KNOTS, retstep=True)
    weights = np.full(_KNOTS, 2 * step)
    weights[[0, -1]] = step
    normal = np.exp(-np.square(places) / 2)
    projected = jnp.einsum("vnk,km->vnm", z.astype(dtype), along.astype(dtype), precision=_EXACT)
    cosines, sines = _characteristic(projected, jnp.asarray(places, dtype))
    errors = jnp.square(cosines - jnp.asarray(normal, dtype)[None, None]) + jnp.square(sines)
    weighted = errors * jnp.asarray(weights * normal, dtype)[None, None]
    return z.shape[1] * weighted.sum(axis=-1)


@jax.checkpoint
def _characteristic(
    projected: Float[Array, "V N M"], places: Float[Array, " T"]
) -> tuple[Float[Array, "V M T"], Float[Array, "V M T"]]:
    """Return the means over N of the cosine and the sine at every place.

    Their N x T values are computed again in the backward pass, so that none is kept.
    """
    angles = projected[..., None] * places[None, None, None]
    return jnp.cos(angles).mean(axis=1), jnp.sin(angles).mean(axis=1)


def sigreg(z: Float[Array, "V N K"], along: Float[Array, "K M"]) -> Float[Array, ""]:
    """Return Sketched Isotropic Gaussian Regularization: the mean `normality` (section 4)."""
    return normality(z, along).mean()


def disagreement(z: Float[Array, "V N K"], num_large: int) -> Float[Array, ""]:
    """Return the mean squared distance of all views from the mean of the first `num_large`."""
    centre = z[:num_large].mean(axis=0, keepdims=True)
    return jnp.square(centre - z).mean()


@dataclasses.dataclass(frozen=True)
class LeJepa(Objective):
    """The objective; `cfg` is a `LeJepaConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = (_PROJECTOR,)

    cfg: LeJepaConfig

    @property
    def views(self) -> Mapping[str, View]:
        """The large crops together, and the small ones."""
        cfg, (height, width, channels) = self.cfg, models.input_shape(self.model)
        rules = reading(self.data)
        found = {
            _LARGE: View(
                transform=self.data.transform,
                size=(height, width),
                channels=channels,
                count=cfg.large_crops,
                reading=rules,
            )
        }
        if cfg.small_crops:
            found[_SMALL] = View(
                transform=cfg.small,
                size=base.pair(cfg.small_size, "small_size"),
                channels=channels,
                count=cfg.small_crops,
                reading=rules,
            )
        return found

    @property
    def _projector(self) -> Projector:
        cfg = self.cfg
        return Projector(cfg.hidden_dim, cfg.dim, base.compute_dtype(self.model))

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder and the projector."""
        params, model_state = Objective.init(self, key)
        image = jnp.zeros((1, *models.input_shape(self.model)))

        def features(params: Any, state: Any) -> jax.Array:
            return self.module.apply({"params": params, **state}, image, train=False).features

        width = jax.eval_shape(features, params, model_state).shape[-1]
        own = self._projector.init(jax.random.fold_in(key, 1), jnp.zeros((1, width)))
        return {**params, _PROJECTOR: own["params"]}, model_state

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise the crops."""
        del rng
        found = {}
        for name, view in self.views.items():
            images = batch[name]  # one crop has no axis of its own
            images = images if view.count == 1 else images.reshape(-1, *images.shape[2:])
            found[name] = data.normalize(images, self.data.mean, self.data.std)
        return found

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the weighted sum of SIGReg and the views' disagreement; each is a metric.

        `feature_rank` is the participation ratio of the features of the large crops.
        """
        cfg = self.cfg
        z, features, state = self._embedded(params, ctx.model_state, batch, rng, train=True)
        # Drawn from the step's own key: the same on every device.
        along = directions(jax.random.fold_in(rng, len(self.views)), cfg.dim, cfg.directions)
        spread, apart = sigreg(z, along), disagreement(z, cfg.large_crops)
        loss = cfg.weight * spread + (1 - cfg.weight) * apart
        rank = feature_rank(jax.lax.stop_gradient(features))
        metrics = {"loss": loss, "sigreg": spread, "disagreement": apart, "feature_rank": rank}
        return loss, Aux(metrics, state, ctx.objective)

    def _embedded(
        self, params: Any, state: Any, batch: Batch, rng: jax.Array, *, train: bool
    ) -> tuple[Float[Array, "V B K"], Float[Array, "I D"], Any]:
        """Return the vectors that are compared, the features of the large crops, and the state."""
        found = []
        for i, (name, view) in enumerate(self.views.items()):
            key = jax.random.fold_in(rng, i)
            out, state = self.apply(params, state, batch[name], key, train=train)
            # The crops of an image stay side by side, and no image moves to another device.
            found.append(out.features.reshape(-1, view.count, out.features.shape[-1]))
        together = jnp.concatenate(found, axis=1)
        flat = together.reshape(-1, together.shape[-1])
        z = cast(jax.Array, self._projector.apply({"params": params[_PROJECTOR]}, flat))
        z = z.reshape(*together.shape[:2], -1).swapaxes(0, 1)
        return z, found[0].reshape(-1, flat.shape[-1]), state

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example: three times those of all crops."""
        looped = dataclasses.replace(self, model=models.looped(self.model))
        rng = jax.eval_shape(lambda: jax.random.key(0))
        shapes = {
            name: jax.ShapeDtypeStruct((1, *view.shape), jnp.uint8)
            for name, view in self.views.items()
        }
        batch = jax.eval_shape(looped.prepare, shapes, rng)
        state = {name: value for name, value in variables.items() if name != "params"}
        embedded = functools.partial(looped._embedded, train=False)
        return train_flops(count(embedded, variables["params"], state, batch, rng))
