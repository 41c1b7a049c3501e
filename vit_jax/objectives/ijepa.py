# SPDX-License-Identifier: Apache-2.0
"""I-JEPA (arXiv:2301.08243): the features of blocks of patches, from those of a part of the rest.

A teacher, the moving average of the encoder, sees the whole image. The encoder sees the context, a
part of the patches in none of the blocks, and a predictor says what the teacher has at the places
of each block. Nothing is distorted: views are plain crops.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from vit_jax import models
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, decoder
from vit_jax.models.base import check_heads
from vit_jax.objectives import hiding
from vit_jax.objectives.base import Aux, Batch, Context, Objective, ObjectiveConfig
from vit_jax.objectives.dino import feature_rank
from vit_jax.settings.fields import value

Range = tuple[float, ...]  # (least, most)

_EPS = 1e-5  # of the norm of the targets, PyTorch's default
_DRAWS = 1024  # equally likely sizes of a block
_COLLAPSED = 1.05  # a rank of features below it


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class IJepaConfig(ObjectiveConfig):
    """Settings of I-JEPA; the defaults are the authors' of ViT-H.

    The teacher is the run's moving average, `ema_decay` to `ema_decay_end`.

    Attributes:
        targets: M, how many blocks are predicted.
        target_scale: the range of their share of the patches.
        target_aspect: the range of their height over width.
        context_scale: the range of the share of the square that the context is from.
        context_share: of all patches, those that the encoder sees of it.
        predictor_dim, predictor_depth, predictor_heads: of the predictor; its MLPs are four times
            as wide.
    """

    uses_labels: ClassVar[bool] = False
    needs_average: ClassVar[bool] = True
    scores_images: ClassVar[bool] = False

    targets: int = value(4, least=1)
    target_scale: tuple[float, ...] = value((0.15, 0.2), lengths=(2,), least=0, below=1)
    target_aspect: tuple[float, ...] = value((0.75, 1.5), lengths=(2,), above=0)
    context_scale: tuple[float, ...] = value((0.85, 1.0), lengths=(2,), least=0, most=1)
    context_share: float = value(0.3, above=0, below=1)
    predictor_dim: int = value(384, least=4)
    predictor_depth: int = value(12, least=1)
    predictor_heads: int = value(16, least=1)

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError for a model, blocks or a predictor that cannot be, in one line."""
        del data
        hiding.check(model, "I-JEPA")
        hiding.check_part(model, "I-JEPA's")
        hiding.counted(model, self.context_share, "objective.context_share")
        for name in ("target_scale", "target_aspect", "context_scale"):
            low, high = given = getattr(self, name)
            if low > high:
                raise UserError(f"objective.{name}={given} must be (least, most)")
        if self.predictor_dim % 4:
            raise UserError(f"objective.predictor_dim={self.predictor_dim} must be divisible by 4")
        fields = ("objective.predictor_dim", "objective.predictor_heads")
        check_heads(self.predictor_dim, self.predictor_heads, fields)


class Blocks(NamedTuple):
    """What of each image is seen and what is predicted; all are patches, row by row.

    Attributes:
        kept: the context.
        targets: of M blocks.
        real: False for the last of them where the blocks are smaller than the largest.
    """

    kept: Int[Array, "B K"]
    targets: Int[Array, "B M T"]
    real: Bool[Array, "B T"]


def block_sizes(grid: tuple[int, int], scale: Range, aspect: Range) -> Int[np.ndarray, "n 2"]:
    """Return the (rows, columns) of equally likely blocks.

    One number in [0, 1) gives area and aspect, which therefore rise together, as in the authors'
    code (`src/masks/multiblock.py`). Both sides are rounded and less than the grid's, but 1 at
    least.
    """
    rows, columns = grid
    found = []
    for i in range(_DRAWS):
        share = (i + 0.5) / _DRAWS
        area = max(int(rows * columns * (scale[0] + share * (scale[1] - scale[0]))), 1)
        ratio = aspect[0] + share * (aspect[1] - aspect[0])
        sides = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        found.append([max(min(n, most - 1), 1) for n, most in zip(sides, grid, strict=True)])
    return np.asarray(found, np.int32)


def draw(
    key: Key[Array, ""], num_images: int, grid: tuple[int, int], num_kept: int, cfg: IJepaConfig
) -> Blocks:
    """Draw the blocks of a batch: their size is that of the batch, their places each image's own.

    The context is `num_kept` of the patches in a square and in no block, in random order. Where
    they are fewer, others that no block has follow, and then those of blocks.
    """
    # Differs from paper: in its code the context is all of these patches, cut, the last rows first,
    # to as many as the image with the fewest has; a program has one number. 0.3 of the patches is
    # about what remains there of batches of 128. There no block touches the last row or column.
    sizes = block_sizes(grid, cfg.target_scale, cfg.target_aspect)
    squares = block_sizes(grid, cfg.context_scale, (1.0, 1.0))
    most = int(sizes.prod(axis=1).max())
    size_key, square_key, key = jax.random.split(key, 3)
    size = jnp.asarray(sizes)[jax.random.randint(size_key, (), 0, _DRAWS)]
    square = jnp.asarray(squares)[jax.random.randint(square_key, (), 0, _DRAWS)]
    total, columns = grid[0] * grid[1], grid[1]
    sides, place = jnp.asarray(grid), jnp.arange(total)
    at = jnp.stack([place // columns, place % columns])[None]  # [1, 2, N]

    def corners(key: Array, count: int, size: Array) -> Int[Array, "count 2"]:
        drawn = jax.random.uniform(key, (count, 2))
        return jnp.floor(drawn * (sides - size + 1)[None]).astype(jnp.int32)

    def inside(corner: Array, size: Array) -> Bool[Array, "count N"]:
        past = at - corner[:, :, None]
        return ((past >= 0) & (past < size[None, :, None])).all(axis=1)

    def one(key: Array) -> tuple[Array, Array]:
        keys = jax.random.split(key, 3)
        corner = corners(keys[0], cfg.targets, size)
        taken = inside(corner, size).any(axis=0)
        near = inside(corners(keys[1], 1, square), square)[0]
        order = jnp.where(taken, 2.0, jnp.where(near, 0.0, 1.0))
        kept = jnp.argsort(order + jax.random.uniform(keys[2], (total,)))[:num_kept]
        i = jnp.arange(most)
        steps = jnp.minimum(jnp.stack([i // size[1], i % size[1]]), size[:, None] - 1)
        found = corner[:, :, None] + steps[None]
        return kept, found[:, 0] * columns + found[:, 1]

    kept, targets = jax.vmap(one)(hiding.training_keys(key, num_images))
    real = jnp.broadcast_to(jnp.arange(most) < size.prod(), (num_images, most))
    return Blocks(kept, targets, real)


def smooth_l1(found: Float[Array, "B M T D"], wanted: Float[Array, "B M T D"]) -> jax.Array:
    """Return PyTorch's smooth L1 [B, M, T] with beta 1, its mean over D, in float32."""
    apart = jnp.abs(found.astype(jnp.float32) - wanted.astype(jnp.float32))
    return jnp.where(apart < 1, 0.5 * apart * apart, apart - 0.5).mean(axis=-1)


def normalized(tokens: Float[Array, "B N D"]) -> Float32[Array, "B N D"]:
    """Give each token mean 0 and variance 1 over its width."""
    x = tokens.astype(jnp.float32)
    x -= x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + _EPS)


@dataclasses.dataclass(frozen=True)
class IJepa(Objective):
    """The objective; `cfg` is an `IJepaConfig`."""

    own_parameters: ClassVar[tuple[str, ...]] = decoder.PREDICTOR

    cfg: IJepaConfig

    @functools.cached_property
    def predictor(self) -> decoder.Predictor:
        """The predictor."""
        cfg, model = self.cfg, cast(Any, self.model)
        sizes = (cfg.predictor_dim, cfg.predictor_depth, cfg.predictor_heads)
        return decoder.Predictor(decoder.decoder_config(model, *sizes), model.dim)

    @property
    def own_heads(self) -> int:
        """The number of heads of the predictor's attention."""
        return self.cfg.predictor_heads

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Initialise the encoder and, beside it under the authors' names, the predictor.

        The last kernel of each branch is divided by sqrt(2 n) in the n-th block, as theirs.
        """
        params, model_state = Objective.init(self, key)
        looped = dataclasses.replace(self, model=models.looped(self.model))
        kept, targets = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1, 1), jnp.int32)
        tokens = jnp.zeros((1, 1, cast(Any, self.model).dim))
        given = (tokens, kept, targets, jnp.ones((1, 1), bool))
        own = looped.predictor.init(jax.random.fold_in(key, 1), *given)["params"]
        params = {**params, **own}
        for name in ("blocks", "predictor_blocks"):
            params[name] = jax.tree_util.tree_map_with_path(_rescaled, params[name])
        return params, model_state

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Normalise the images and draw the blocks."""
        return {**Objective.prepare(self, batch, rng), **self._drawn(rng, len(batch["image"]))}

    def _drawn(self, rng: jax.Array, num_images: int) -> Batch:
        grid = models.patch_grid(self.model, models.input_shape(self.model)[:2])
        num_kept = hiding.counted(self.model, self.cfg.context_share, "objective.context_share")
        return draw(rng, num_images, grid, num_kept, self.cfg)._asdict()

    def loss(
        self, params: Any, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean smooth L1 distance of the prediction from the teacher's features.

        `feature_rank` is the participation ratio of the teacher's features of the images.
        """
        wanted, features = jax.lax.stop_gradient(self._teacher(ctx.ema, batch))
        found, state = self._predicted(params, ctx.model_state, batch, rng, train=True)
        weights = batch["real"].astype(jnp.float32)[:, None]
        total = weights.sum() * self.cfg.targets
        loss = (smooth_l1(found, wanted) * weights).sum() / total
        metrics = {"loss": loss, "feature_rank": feature_rank(features)}
        return loss, Aux(metrics, state, ctx.objective)

    def _teacher(self, average: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the normalised tokens of the targets [B, M, T, D], and the features [B, D]."""
        out = self.module.apply(average, batch["image"], train=False)
        targets = batch["targets"]
        at = targets.reshape(len(targets), -1, 1) + models.num_prefix(self.model)
        found = normalized(jnp.take_along_axis(out.tokens, at, axis=1))
        return found.reshape(*targets.shape, -1), out.features

    def _predicted(
        self, params: Any, state: Any, batch: Batch, rng: jax.Array, *, train: bool
    ) -> tuple[Float[Array, "B M T D"], Any]:
        kept = batch["kept"]
        out, state = self.apply(params, state, batch["image"], rng, train=train, kept=kept)
        own = {name: params[name] for name in self.own_parameters}
        tokens = out.tokens[:, models.num_prefix(self.model) :]
        given = (tokens, kept, batch["targets"], batch["real"])
        return cast(jax.Array, self.predictor.apply({"params": own}, *given)), state

    def alarm(self, metrics: Mapping[str, float]) -> str:
        """Return that the features have collapsed, in words; "" if they have not."""
        if metrics.get("feature_rank", 2.0) < _COLLAPSED:
            return "collapse: the features of all images lie on one line"
        return ""

    def flops(self, variables: Any) -> int:
        """Return the model FLOPs of training on one example.

        Three times those of the context and the predictor, and the teacher's.
        """
        looped = dataclasses.replace(self, model=models.looped(self.model))
        rng = jax.eval_shape(lambda: jax.random.key(0))
        shape = (1, *models.input_shape(self.model))
        batch = jax.eval_shape(
            looped.prepare, {"image": jax.ShapeDtypeStruct(shape, jnp.uint8)}, rng
        )
        state = {name: value for name, value in variables.items() if name != "params"}
        predicted = functools.partial(looped._predicted, train=False)
        teacher = count(looped._teacher, variables, batch)
        return train_flops(count(predicted, variables["params"], state, batch, rng)) + teacher


def _rescaled(path: Any, leaf: jax.Array) -> jax.Array:
    """Divide the last kernels of the branches, [L, in, out], by sqrt(2 n) in block n."""
    names = [key.key for key in path]
    if names[-1] != "kernel" or names[-2] not in ("proj", "fc2"):
        return leaf
    return leaf / jnp.sqrt(2.0 * jnp.arange(1, len(leaf) + 1))[:, None, None]
