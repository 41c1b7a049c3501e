# SPDX-License-Identifier: Apache-2.0
"""Masked patch prediction, the ViT paper's own self-supervision (arXiv:2010.11929 appendix B.1.2).

Half of the patches' embeddings are corrupted as BERT corrupts words, and the colour of each is
predicted from its own token.
"""

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt8

from vit_jax import data, models
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.layers import masking
from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.init import RULES
from vit_jax.objectives import hiding
from vit_jax.objectives.base import Aux, Batch, Context, Objective, ObjectiveConfig
from vit_jax.settings.fields import value

LEVELS = 8  # of a channel: 3 bits
_GRID = 4  # rows and columns of a patch's colours with PatchTarget.GRID
_HEAD, _TOKEN = "patch_head", "mask_token"


class PatchTarget(enum.StrEnum):
    """What is predicted of a corrupted patch: the paper's three settings."""

    MEAN = "mean"  # its mean colour in 3 bits a channel: one class of 512
    GRID = "grid"  # the colours of the patch reduced to 4 x 4 pixels: 16 classes of 512
    PIXELS = "pixels"  # all of its pixels, by their squared error: slightly worse in the paper


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MaskedPatchConfig(ObjectiveConfig):
    """Settings of masked patch prediction; the defaults are the paper's.

    Attributes:
        share: of the patches, those that are corrupted.
        masked: of the corrupted ones, those that become the mask token.
        swapped: of the corrupted ones, those that become another patch of the same image; the rest
            stay as they are.
        target: what is predicted.
    """

    uses_labels: ClassVar[bool] = False

    share: float = value(0.5, above=0, below=1)
    masked: float = value(0.8, least=0, most=1)
    swapped: float = value(0.1, least=0, most=1)
    target: PatchTarget = PatchTarget.MEAN

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for shares that are more than all, or a model without tokens."""
        hiding.check(model, "masked patch prediction")
        if data.bands and self.target is not PatchTarget.PIXELS:
            what = f"objective.target={self.target} is of colours, which data.bands are not"
            raise UserError(f"{what}; set pixels", field="objective.target")
        hiding.counted(model, self.share, "objective.share")
        if self.masked + self.swapped > 1:
            sums = f"objective.masked={self.masked} and objective.swapped={self.swapped}"
            raise UserError(f"{sums} are more than 1 together; lower one")
        sides = models.pair(getattr(model, "patch", (1,)), "patch")
        if self.target is PatchTarget.GRID and any(side % _GRID for side in sides):
            why = f"needs a patch that {_GRID} divides, not model.patch={sides}"
            raise UserError(f"objective.target=grid {why}")


@dataclasses.dataclass(frozen=True)
class MaskedPatch(Objective):
    """The objective; `cfg` is a `MaskedPatchConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = (_TOKEN, _HEAD)

    cfg: MaskedPatchConfig

    @functools.cached_property
    def head(self) -> Dense:
        """The layer from a token to its predictions; it starts at zero, like the paper's heads."""
        channels = self.model.channels
        rows, columns = models.pair(self._vit.patch, "patch")
        match self.cfg.target:
            case PatchTarget.MEAN:
                outputs = LEVELS**channels
            case PatchTarget.GRID:
                outputs = _GRID**2 * LEVELS**channels
            case PatchTarget.PIXELS:
                outputs = rows * columns * channels
        return Dense(outputs, jnp.float32, jax.nn.initializers.zeros, name=_HEAD)

    @property
    def _vit(self) -> Any:
        return self.model

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder, the mask token and the head."""
        params, model_state = Objective.init(self, key)
        dim, token_key = self._vit.dim, jax.random.fold_in(key, 1)
        token = RULES[self._vit.init].token(token_key, (1, 1, dim), jnp.float32)
        head = self.head.init(key, jnp.zeros((1, dim)))["params"]
        return {**params, _TOKEN: token, _HEAD: head}, model_state

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise the images, draw what is corrupted and read what is to be predicted."""
        keys = hiding.training_keys(rng, len(batch["image"]))
        return {**Objective.prepare(self, batch, rng), **self._hidden(batch["image"], keys)}

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean over the corrupted patches, with the share of exact colours."""
        losses, hits, state = self._losses(params, ctx.model_state, batch, rng, train=True)
        loss = losses.mean()
        metrics = {"loss": loss, **({} if hits is None else {"patch_top1": hits.mean()})}
        return loss, Aux(metrics, state, ctx.objective)

    def example_losses(self, variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return the loss [B] of each example; an image is corrupted alike in each evaluation."""
        image = batch["image"]
        hidden = self._hidden(image, hiding.image_keys(image))
        hidden["image"] = data.normalize(image, self.data.mean, self.data.std)
        state = {name: value for name, value in variables.items() if name != "params"}
        key = jax.random.key(0)  # nothing is dropped
        return self._losses(variables["params"], state, hidden, key, train=False)[0]

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example, the head's included."""
        return hiding.flops(self, variables)

    def _hidden(self, image: jax.Array, keys: jax.Array) -> Batch:
        """Return `source` [B, N], the `corrupted` patches [B, n] and their `targets` [B, n, T]."""
        cfg, total = self.cfg, hiding.num_patches(self.model)
        size = hiding.counted(self.model, cfg.share, "objective.share")
        source, corrupted = corruption(keys, total, size, cfg.masked, cfg.swapped)
        if cfg.target is PatchTarget.PIXELS:
            pixels = data.normalize(image, self.data.mean, self.data.std)
            found = hiding.patches(pixels, self.model)
        else:
            found = color_ids(
                image, self._vit.patch, 1 if cfg.target is PatchTarget.MEAN else _GRID
            )
        targets = jnp.take_along_axis(found, corrupted[:, :, None], axis=1)
        return {"source": source, "corrupted": corrupted, "targets": targets}

    def _losses(
        self, params: Any, state: Any, batch: Batch, rng: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array | None, Any]:
        """Return the loss and the share of exact colours of each example, and the model state."""
        image, source = batch["image"], batch["source"]
        out, state = self.apply(params, state, image, rng, train=train, source=source)
        places = batch["corrupted"][:, :, None] + models.num_prefix(self.model)
        tokens = jnp.take_along_axis(out.tokens, places, axis=1)
        found = cast(jax.Array, self.head.apply({"params": params[_HEAD]}, tokens))
        targets = batch["targets"]
        if self.cfg.target is PatchTarget.PIXELS:
            return jnp.square(found - targets).mean(axis=(1, 2)), None, state
        logits = found.reshape(*targets.shape, -1)  # [B, n, T, 512]
        likely = jax.nn.log_softmax(logits, axis=-1)
        losses = -jnp.take_along_axis(likely, targets[..., None], axis=-1)[..., 0]
        hits = (logits.argmax(axis=-1) == targets).astype(jnp.float32)
        return losses.mean(axis=(1, 2)), hits.mean(axis=(1, 2)), state


def corruption(
    keys: Key[Array, " B"], total: int, size: int, masked: float, swapped: float
) -> tuple[Int[Array, "B N"], Int[Array, "B n"]]:
    """Draw `size` of `total` patches of each image, and what each becomes.

    The paper does not say where another patch is taken from: here from the same image.

    Returns:
        The patch whose embedding each patch has, `total` for the mask token; the corrupted patches.
    """
    chosen = masking.shuffled(keys, total)[:, :size]

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        chance, other = jax.random.split(jax.random.fold_in(key, 1))
        shift = jax.random.randint(other, (size,), 1, max(total, 2))
        return jax.random.uniform(chance, (size,)), shift

    chance, shift = jax.vmap(draw)(keys)
    others = jnp.where(chance < masked + swapped, (chosen + shift) % total, chosen)
    becomes = jnp.where(chance < masked, total, others)
    every = jnp.broadcast_to(jnp.arange(total)[None], (len(keys), total))
    source = jnp.put_along_axis(every, chosen, becomes, axis=1, inplace=False)
    return source, chosen


def color_ids(
    image: UInt8[Array, "B H W C"], patch: tuple[int, ...], cells: int
) -> Int[Array, "B N T"]:
    """Return the mean colours of the patches of uint8 images, each cut into T = cells x cells.

    The mean m in [0, 1] of a channel falls into bin min(floor(8 m), 7); an id is 64 r + 8 g + b,
    and for grey images the bin itself. Cells are in row-major order, as patches.
    """
    rows, columns = models.pair(patch, "patch")
    batch, height, width, channels = image.shape
    p, q = rows // cells, columns // cells
    cut = (batch, height // rows, cells, p, width // columns, cells, q, channels)
    # Sums of whole numbers are exact: a colour on the edge of a bin is in the same on any device.
    sums = image.astype(jnp.int32).reshape(cut).sum(axis=(3, 6))
    bins = jnp.minimum(LEVELS * sums // (255 * p * q), LEVELS - 1)
    weights = (LEVELS ** jnp.arange(channels)[::-1]).reshape(1, 1, 1, 1, 1, -1)
    ids = (bins * weights).sum(axis=-1)  # [B, rows, cells, columns, cells]
    return ids.swapaxes(2, 3).reshape(batch, -1, cells * cells)
