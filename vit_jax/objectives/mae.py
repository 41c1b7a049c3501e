# SPDX-License-Identifier: Apache-2.0
"""The masked autoencoder, MAE (arXiv:2111.06377): pixels of hidden patches from the others.

The encoder sees a quarter of the patches, so that its cost falls to about that.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from vit_jax import data, models
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, decoder
from vit_jax.models.base import check_heads
from vit_jax.models.layers import masking
from vit_jax.objectives import hiding
from vit_jax.objectives.base import Aux, Batch, Context, Objective, ObjectiveConfig
from vit_jax.settings.fields import value

_EPS = 1e-6  # added to a patch's variance
# What the encoder and the decoder are told about an image: see `Masks`.
_KEPT, _ORDER = "kept", "order"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MaeConfig(ObjectiveConfig):
    """Settings of a masked autoencoder; the defaults are the paper's.

    Attributes:
        share: of the patches, those that are hidden.
        norm_pix: predict the pixels of each patch normalised by its own mean and deviation.
        decoder_dim, decoder_depth, decoder_heads: of the decoder; its MLPs are four times as wide.
    """

    uses_labels: ClassVar[bool] = False

    share: float = value(0.75, above=0, below=1)
    norm_pix: bool = True
    decoder_dim: int = value(512, least=4)
    decoder_depth: int = value(8, least=1)
    decoder_heads: int = value(16, least=1)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for a model or a decoder that cannot be, in one line."""
        del data
        hiding.check(model, "a masked autoencoder")
        hiding.counted(model, self.share, "objective.share")
        hiding.counted(model, 1 - self.share, "1 - objective.share")
        hiding.check_part(model, "a masked autoencoder's")
        if self.decoder_dim % 4:
            raise UserError(f"objective.decoder_dim={self.decoder_dim} must be divisible by 4")
        fields = ("objective.decoder_dim", "objective.decoder_heads")
        check_heads(self.decoder_dim, self.decoder_heads, fields)


class Masks(NamedTuple):
    """Which patches the encoder sees.

    Attributes:
        kept: the patches that it sees, in the order in which it does.
        order: where each patch stands in the sequence of the kept ones and then the hidden ones.
    """

    kept: Int[Array, "B K"]
    order: Int[Array, "B N"]

    @property
    def hidden(self) -> Float[Array, "B N"]:
        """1 where a patch is hidden, 0 where it is kept."""
        return (self.order >= self.kept.shape[1]).astype(jnp.float32)


def masks(shuffle: Int[Array, "B N"], num_kept: int) -> Masks:
    """Keep the first patches of a random order: the argsort of the paper's noise."""
    return Masks(shuffle[:, :num_kept], jnp.argsort(shuffle, axis=1))


@dataclasses.dataclass(frozen=True)
class Mae(Objective):
    """The objective; `cfg` is a `MaeConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = decoder.PARAMETERS

    cfg: MaeConfig

    @functools.cached_property
    def decoder(self) -> decoder.Decoder:
        """The decoder."""
        cfg = self.cfg
        sizes = (cfg.decoder_dim, cfg.decoder_depth, cfg.decoder_heads)
        return decoder.Decoder(decoder.decoder_config(self.model, *sizes))

    @property
    def own_heads(self) -> int:
        """The number of heads of the decoder's attention."""
        return self.cfg.decoder_heads

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder and, beside it under MAE's names, the decoder."""
        params, model_state = Objective.init(self, key)
        looped = dataclasses.replace(self, model=models.looped(self.model)).decoder
        length, width = hiding.num_patches(self.model), params["patch_embed"]["kernel"].shape[-1]
        tokens = jnp.zeros((1, length + models.num_prefix(self.model), width))
        variables = looped.init(jax.random.fold_in(key, 1), tokens, jnp.arange(length)[None])
        return {**params, **variables["params"]}, model_state

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise the images and draw what is hidden."""
        keys = hiding.training_keys(rng, len(batch["image"]))
        return {**Objective.prepare(self, batch, rng), **self._drawn(keys)._asdict()}

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean squared error of the hidden patches."""
        masks = Masks(batch[_KEPT], batch[_ORDER])
        image, state = batch["image"], ctx.model_state
        pixels, state = self._decoded(params, state, image, masks, rng, train=True)
        loss = self._errors(pixels, image, masks).mean()
        return loss, Aux({"loss": loss}, state, ctx.objective)

    def example_losses(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return the loss [B] of each example; each evaluation hides the same of an image."""
        image = data.normalize(batch["image"], self.data.mean, self.data.std)
        masks = self._drawn(hiding.image_keys(batch["image"]))
        return self._errors(self._predicted(variables, image, masks), image, masks)

    def reconstructions(
        self, variables: Any, batch: Mapping[str, jax.Array]
    ) -> tuple[Float[Array, "B H W C"], Float[Array, "B H W C"]]:
        """Return the images with grey where a patch is hidden, and with the prediction there.

        Both are in the units of the data, where white is 1. With `norm_pix` a predicted patch has
        the mean and the deviation of the true one, which the model does not predict.
        """
        image = data.normalize(batch["image"], self.data.mean, self.data.std)
        masks = self._drawn(hiding.image_keys(batch["image"]))
        pixels = self._predicted(variables, image, masks)
        true = hiding.patches(image, self.model)
        if self.cfg.norm_pix:
            mean, deviation = _moments(true)
            pixels = pixels * deviation + mean
        hidden = masks.hidden[:, :, None]
        shift, scale = (
            jnp.asarray(values, jnp.float32).reshape(1, 1, 1, -1)
            for values in (self.data.mean, self.data.std)
        )
        grey = hiding.patches((0.5 - shift + 0 * image) / scale, self.model)
        masked, filled = true * (1 - hidden) + grey * hidden, true * (1 - hidden) + pixels * hidden
        masked, filled = (hiding.image_of(x, self.model) * scale + shift for x in (masked, filled))
        return masked, filled

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example: those of the patches that it keeps."""
        return hiding.flops(self, variables)

    def _drawn(self, keys: Key[Array, " B"]) -> Masks:
        total = hiding.num_patches(self.model)
        return masks(masking.shuffled(keys, total), int(total * (1 - self.cfg.share)))

    def _predicted(self, variables: Any, image: jax.Array, masks: Masks) -> jax.Array:
        state = {name: value for name, value in variables.items() if name != "params"}
        key = jax.random.key(0)  # nothing is dropped
        return self._decoded(variables["params"], state, image, masks, key, train=False)[0]

    def _decoded(
        self,
        params: Any,
        state: Any,
        image: jax.Array,
        masks: Masks,
        rng: jax.Array,
        *,
        train: bool,
    ) -> tuple[Float[Array, "B N P"], Any]:
        out, state = self.apply(params, state, image, rng, train=train, kept=masks.kept)
        own = {name: params[name] for name in self.own_parameters}
        pixels = self.decoder.apply({"params": own}, out.tokens, masks.order)
        return cast(jax.Array, pixels), state

    def _errors(self, pixels: jax.Array, image: jax.Array, masks: Masks) -> Float[Array, " B"]:
        """Return the mean squared error over the hidden patches of each image."""
        target = hiding.patches(image, self.model)
        if self.cfg.norm_pix:
            mean, deviation = _moments(target)
            target = (target - mean) / deviation
        errors = jnp.square(pixels.astype(jnp.float32) - target).mean(axis=-1)
        return (errors * masks.hidden).sum(axis=1) / masks.hidden.sum(axis=1)


def _moments(patches: Float[Array, "B N P"]) -> tuple[Float[Array, "B N 1"], Float[Array, "B N 1"]]:
    """Return the mean of each patch and its deviation, the variance over P - 1 and never 0."""
    mean, var = patches.mean(axis=-1, keepdims=True), patches.var(axis=-1, keepdims=True, ddof=1)
    return mean, jnp.sqrt(var + _EPS)
